"""SFrame and `.eh_frame` of a file give the same rows, so that the two readers check each other.

At every address that both tables cover, both rows have the same CFA, return address, frame pointer and signal
mark: in fixtures at every byte, in libraries of this system at the start of every interval in which both are
constant. Rules are compared as they are written.  Where CFI has an expression (PLT, stack realignment), both
rows are executed with invented registers and memory.  SFrame has three registers; rules for others are not
compared.

Known faults of tools are no tolerances: `explain` computes exactly what the wrong table must state.  The
fixtures need none (their `.plt.got`, which is wrong in the file, is repaired by the reader, which has its own
test).  After `leave` in a realigned function, "FP is stored at rbp" is wrong for two instructions, but GCC
writes this in CFI as well.
"""

from collections import Counter
from mmap import ACCESS_READ, mmap
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe import SFrameTable
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from tests.builders.installed import LIBRARY_DIRS, libraries
from tests.differential.verify import (
    CallerRules,
    Disagreement,
    caller_rules,
    row_pair_at,
    rows_disagree,
    verify,
)
from tests.inspect.test_coverage import TEXT, entry, module

FIXTURES = Path(__file__).parent.parent / "fixtures"
SUBJECTS = [path.with_suffix("") for path in sorted(FIXTURES.glob("v*/*.readelf"))]

SP, FP = AMD64.sp, AMD64.fp
RA_SLOT = Rule(CFA, -8, deref=True)
ENTRY = CallerRules(Rule(SP, 8, deref=False), RA_SLOT, None, signal=False)  # of a function; fp is unchanged


def explain(module: Module, found: Disagreement) -> str | None:
    """Return which known fault of a tool this is, or None.

    `_start`: gas before 2.46 ignores `.cfi_undefined rip`, so the row is the one of a function's entry.
    `restored`: gas takes `.cfi_restore rbp` back to the function's first row instead of the CIE (2.40-2.45)
    or loses it (2.46 on): all else is the same, and FP is where another row of the function has it.
    """
    sframe, cfi = found.sframe, found.eh_frame
    [table] = [table for table in module.tables.sframe if table.find(found.vaddr) is not None]
    if cfi.ra is None and table.version < 3:
        return "_start" if sframe == ENTRY else None
    elsewhere = [fre.fp for fre in table.rows(table.find(found.function))]
    if cfi.fp is None and sframe == cfi._replace(fp=sframe.fp) and sframe.fp in elsewhere:
        return "restored"
    return None


def explained(module: Module, disagreements: tuple[Disagreement, ...]) -> Counter[str | None]:
    return Counter(explain(module, found) for found in disagreements)


def report(text: str) -> None:
    print(text)  # noqa: T201 - for `pytest -s`


def module_of(path: Path) -> Module:
    with path.open("rb") as file:
        image = ElfImage(mmap(file.fileno(), 0, access=ACCESS_READ), str(path))
    return Module(image, 0, str(path))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def section_at(module: Module, vaddr: int) -> str:
    return next(s.name for s in module.image.sections if s.vaddr <= vaddr < s.vaddr + s.size)


def is_left_out(module: Module, table: SFrameTable, vaddr: int) -> bool:
    """Return True for code whose rows a look-up leaves out: stubs of V1."""
    return table.version == 1 and section_at(module, vaddr) in (".plt", ".plt.sec")


@pytest.mark.parametrize("path", SUBJECTS, ids=name_of)
def test_every_byte_of_a_fixture(path):
    module = module_of(path)
    [table] = module.tables.sframe
    compared = 0
    for fde in table.fdes():
        for pc in range(fde.start, fde.start + fde.size):
            pair = row_pair_at(module, table, pc, AMD64)
            if pair is None:
                assert is_left_out(module, table, pc)
                continue
            sframe, cfi = pair
            assert cfi is not None
            assert not rows_disagree(sframe, cfi, pc), hex(pc)
            compared += 1
    report(f"{name_of(path)}: {compared} addresses compared")

    extents = [range(fde.start, fde.start + fde.size) for fde in table.fdes()]
    stubs = sum(is_left_out(module, table, pc) for extent in extents for pc in extent)
    assert sum(map(len, extents)) - stubs <= compared <= sum(map(len, extents))
    assert compared > 0
    assert module.problems == []


@pytest.mark.parametrize("path", SUBJECTS, ids=name_of)
def test_comparison_by_intervals_covers_every_row(path):
    """`verify` compares fewer addresses, and as many rows."""
    module = module_of(path)
    [table] = module.tables.sframe
    verdict = verify(module)
    rows = sum(fde.num_fres for fde in table.fdes() if not is_left_out(module, table, fde.start))
    report(f"{name_of(path)}: {verdict.compared} intervals compared")

    assert (verdict.sframe_only, verdict.disagreements) == (0, ())
    assert rows <= verdict.compared <= sum(fde.size for fde in table.fdes())


@pytest.mark.parametrize("path", SUBJECTS, ids=name_of)
def test_only_rows_of_stubs_that_ld_writes_wrong_are_repaired(path):
    """ld 2.44 and later writes sp+16 for `.plt.got`.  CFI is right."""
    module = module_of(path)
    [table] = module.tables.sframe
    repaired: Counter[str] = Counter()
    for fde in table.fdes():
        as_stored = table.rows(fde)
        for pc in range(fde.start, fde.start + fde.size):
            fre = table.row_at(pc)
            if fre is not None and fre not in as_stored:
                repaired[section_at(module, pc)] += 1
                sframe, cfi = row_pair_at(module, table, pc, AMD64)
                assert not rows_disagree(sframe, cfi, pc)
    plt_got = module.image.section(".plt.got")
    assert repaired == ({".plt.got": plt_got.size} if plt_got and table.version > 1 else {})


def test_only_known_faults_are_explained():
    module = module_of(FIXTURES / "v1" / "target")
    [table] = module.tables.sframe
    fde = next(fde for fde in table.fdes() if any(fre.fp for fre in table.rows(fde)))
    fp_slot = next(fre.fp for fre in table.rows(fde) if fre.fp)
    entry = UnwindRow(Rule(SP, 8, deref=False), RA_SLOT, kept=(FP,))
    undefined = entry._replace(ra=None)
    deeper = entry._replace(cfa=Rule(SP, 16, deref=False))
    left_over = entry._replace(kept=(), registers=((FP, fp_slot),))
    invented = entry._replace(kept=(), registers=((FP, Rule(CFA, -800, deref=True)),))

    def fault(sframe: UnwindRow, cfi: UnwindRow) -> str | None:
        return explain(module, Disagreement(fde.start, fde.start, caller_rules(sframe), caller_rules(cfi)))

    assert fault(entry, undefined) == "_start"
    assert fault(deeper, undefined) is None
    assert fault(left_over, entry) == "restored"
    assert fault(left_over, deeper) is None
    assert fault(invented, entry) is None
    assert fault(entry, left_over) is None


def test_libraries_of_this_system_have_equal_rows():
    count, compared = 0, Counter()
    for path in libraries():
        try:
            module = module_of(path)
        except FormatError:
            continue  # a linker script, a 32-bit library
        count += 1
        if module.image.sframe() is None or module.image.machine != AMD64.machine:
            continue
        assert module.tables.sframe, module.problems
        verdict = verify(module)
        faults = explained(module, verdict.disagreements)
        assert None not in faults, path
        compared[str(path)] = verdict.compared
        report(f"{path}: {verdict.compared} intervals compared, explained: {dict(faults)}")
    assert count > 0
    if not compared:
        pytest.skip(f"none of the {count} libraries in {', '.join(LIBRARY_DIRS)} carries SFrame")
    assert all(compared.values()), compared


# -- the comparison itself, on tables that the test builds


def test_equal_tables_agree():
    found = verify(module([entry(TEXT, 0x40)], [(TEXT, 0x40)]))

    assert (found.compared, found.sframe_only, found.disagreements) == (1, 0, ())


def test_disagreement_has_the_rules_of_both_tables():
    [wrong] = verify(module([entry(TEXT, 0x40, cfa=16)], [(TEXT, 0x40)])).disagreements

    assert (wrong.function, wrong.vaddr) == (TEXT, TEXT)
    assert wrong.sframe.cfa == Rule(7, 16, deref=False)
    assert wrong.eh_frame.cfa == Rule(7, 8, deref=False)


def test_code_that_only_sframe_covers_is_counted():
    found = verify(module([entry(TEXT, 0x40), entry(TEXT + 0x40, 0x40)], [(TEXT, 0x40)]))

    assert (found.compared, found.sframe_only, found.disagreements) == (1, 1, ())
