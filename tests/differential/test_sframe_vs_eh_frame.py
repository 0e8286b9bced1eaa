"""SFrame against `.eh_frame` of the same file: two encodings of one truth, so two readers check each other.

At every address that both tables cover, both give the same CFA, return address, frame pointer and signal
mark after translation to an `UnwindRow`: in the fixtures at every byte, in libraries of this system at the
start of every interval in which both are constant.  Rules are compared as they are written; where CFI has an
expression (PLT, stack realignment), both rows are executed over invented registers and memory.

SFrame knows three registers, so CFI's rules for others are not compared.

The exceptions are not tolerances: `explain` computes exactly what the wrong side must say.  The fixtures
need none at all (their `.plt.got`, which is wrong in the file, is repaired by our reader: a test of its own).
What looks like one is not: after a realigned function's `leave`, "FP is stored at rbp" is wrong for two
instructions, but GCC says so in CFI as well.
"""

from collections import Counter
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import NamedTuple

import pytest

from sfsample.arch import AMD64
from sfsample.errors import FormatError
from sfsample.formats.eh_frame import EhFrame
from sfsample.formats.elf import ElfImage
from sfsample.formats.sframe import SFrameFde, SFrameTable
from sfsample.model import CFA, Registers, Rule, StopReason
from sfsample.modules.module import Module
from sfsample.unwind.eh_frame import to_row as row_of_cfi
from sfsample.unwind.row import UnwindRow, apply_row
from sfsample.unwind.sframe import to_row as row_of_sframe

FIXTURES = Path(__file__).parent.parent / "fixtures"
SUBJECTS = [  # object files have a test in test_sframe_readelf.py
    path.with_suffix("") for path in sorted(FIXTURES.glob("v*/*.readelf")) if ".o." not in path.name
]
LIBRARY_DIRS = (
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
)

SP, FP, PC = AMD64.sp, AMD64.fp, AMD64.pc
RA_SLOT, KEPT, OUTERMOST = Rule(CFA, -8, deref=True), "kept", "outermost"


class Said(NamedTuple):
    """What a row says of the three registers that SFrame knows."""

    cfa: Rule | None
    ra: Rule | str
    fp: Rule | str
    signal: bool


def said(row: UnwindRow) -> Said:
    if row.ra is None:
        return Said(None, OUTERMOST, OUTERMOST, signal=False)
    fp = dict(row.registers).get(FP)
    if fp is None or fp == Rule(FP, 0, deref=False):
        assert fp is not None or FP in row.kept
        fp = KEPT
    return Said(row.cfa, row.ra, fp, row.signal)


def has_expression(what: Said) -> bool:
    return any(isinstance(rule, Rule) and bool(rule.expression) for rule in what[:3])


class InventedMemory:
    """A word at every address, none twice."""

    def word(self, address: int) -> int:
        return (address * 0x9E3779B97F4A7C15 + 0x1234567) % (1 << 64)

    def read(self, address: int, size: int) -> bytes:
        return self.word(address).to_bytes(8, "little")[:size]


def executed(row: UnwindRow, pc: int) -> tuple[int, Registers] | StopReason:
    registers = {number: 0x7FFF_0000_0000 + (number * 0x10_1008) for number in range(16)} | {PC: pc}
    caller = apply_row(row, registers, InventedMemory(), AMD64)
    if isinstance(caller, StopReason):
        return caller
    return caller.cfa, {number: caller.registers[number] for number in (SP, FP, PC)}


def differs(ours: UnwindRow, cfi: UnwindRow, pc: int) -> bool:
    a, b = said(ours), said(cfi)
    if a == b:
        return False
    if a.signal == b.signal and OUTERMOST not in (a.ra, b.ra) and (has_expression(a) or has_expression(b)):
        result = executed(ours, pc)
        assert not isinstance(result, StopReason)
        return result != executed(cfi, pc)
    return True


def explain(table: SFrameTable, fde: SFrameFde, ours: UnwindRow, cfi: UnwindRow) -> str | None:
    """Return which fault of a known tool this is, None for none (fact sheet, 4.1).

    `_start`: gas before 2.46 ignores `.cfi_undefined rip`, so the row is the one of a function's entry.
    `restored`: gas takes `.cfi_restore rbp` back to the function's first row instead of the CIE (2.40-2.45)
    or loses it (2.46 on): all else is the same, and FP is where another row of the function has it.
    """
    a, b = said(ours), said(cfi)
    if b.ra == OUTERMOST and table.version < 3:
        return "_start" if a == Said(Rule(SP, 8, deref=False), RA_SLOT, KEPT, signal=False) else None
    if b.fp == KEPT and a == b._replace(fp=a.fp) and any(fre.fp == a.fp for fre in table.rows(fde)):
        return "restored"
    return None


class Comparison(NamedTuple):
    """How many addresses were compared, and what was found."""

    compared: int
    sframe_only: int
    unexplained: list[tuple[int, Said, Said]]
    explained: Counter[str]


def interval_starts(table: SFrameTable, fde: SFrameFde, eh_frame: EhFrame) -> Iterator[int]:
    """Yield where either side begins to say something else; every byte where CFI has an expression."""
    end = fde.start + fde.size
    starts = {fde.start}
    period = fde.rep_size if fde.masked and fde.rep_size else fde.size
    for block in range(fde.start, end, max(1, period)):
        starts |= {block + fre.start for fre in table.rows(fde)}
    at = fde.start
    while at < end:
        cfi = eh_frame.find(at)
        if cfi is None:
            at += 1
            continue
        starts.add(at)
        rows = list(eh_frame.rows(cfi))
        starts |= {location for location, _ in rows}
        if any(row.cfa.expression for _, row in rows):
            starts |= set(range(at, min(end, cfi.start + cfi.size)))
        at = cfi.start + cfi.size
    yield from sorted(start for start in starts if fde.start <= start < end)


def compare(module: Module, *, every_byte: bool) -> Comparison:
    eh_frame = module.eh_frame
    assert eh_frame is not None
    compared = sframe_only = 0
    unexplained: list[tuple[int, Said, Said]] = []
    explained: Counter[str] = Counter()
    for table in module.sframe:
        for fde in table.fdes():
            every = range(fde.start, fde.start + fde.size)
            for pc in every if every_byte else interval_starts(table, fde, eh_frame):
                fre, row = table.row_at(pc), eh_frame.row_at(pc)
                if fre is None or row is None:
                    sframe_only += row is None
                    continue
                compared += 1
                ours, cfi = row_of_sframe(fre, table), row_of_cfi(row, AMD64)
                if differs(ours, cfi, pc):
                    fault = explain(table, fde, ours, cfi)
                    if fault is None:
                        unexplained.append((pc, said(ours), said(cfi)))
                    else:
                        explained[fault] += 1
    return Comparison(compared, sframe_only, unexplained, explained)


def report(text: str) -> None:
    print(text)  # noqa: T201 - for whoever runs `pytest -s`


def module_of(path: Path) -> Module:
    with path.open("rb") as file:
        image = ElfImage(mmap(file.fileno(), 0, access=ACCESS_READ), str(path))
    return Module(image, 0, str(path))


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


@pytest.mark.parametrize("path", SUBJECTS, ids=name_of)
def test_every_byte_of_a_fixture(path):
    module = module_of(path)
    [table] = module.sframe
    result = compare(module, every_byte=True)
    report(f"{name_of(path)}: {result.compared} addresses compared")

    assert result.unexplained == []
    assert result.explained == {}
    assert result.sframe_only == 0
    assert result.compared == sum(fde.size for fde in table.fdes()) > 0
    assert module.problems == []


@pytest.mark.parametrize("path", SUBJECTS, ids=name_of)
def test_intervals_are_enough(path):
    """The cheaper way, which the system's libraries get, looks at fewer addresses and at no fewer rows."""
    module = module_of(path)
    [table] = module.sframe
    result = compare(module, every_byte=False)
    report(f"{name_of(path)}: {result.compared} intervals compared")

    assert (result.unexplained, result.explained, result.sframe_only) == ([], {}, 0)
    assert table.num_fres <= result.compared <= sum(fde.size for fde in table.fdes())


@pytest.mark.parametrize("path", SUBJECTS, ids=name_of)
def test_only_plt_got_is_repaired_and_its_row_was_wrong(path):
    """What our reader changes is exactly the section `.plt.got`: the file says sp+16, CFI and we say sp+8."""
    module = module_of(path)
    [table] = module.sframe
    assert module.eh_frame is not None
    repaired = set()
    for fde in table.fdes():
        as_stored = table.rows(fde)
        for pc in range(fde.start, fde.start + fde.size):
            fre = table.row_at(pc)
            if fre not in as_stored:
                repaired.add(pc)
                assert as_stored[0].cfa == Rule(SP, 16, deref=False)
                cfi = row_of_cfi(module.eh_frame.row_at(pc), AMD64)
                assert fre.cfa == cfi.cfa == Rule(SP, 8, deref=False)
    plt_got = module.image.section(".plt.got")
    has_row = plt_got is not None and table.find(plt_got.vaddr) is not None
    expected = set(range(plt_got.vaddr, plt_got.vaddr + plt_got.size)) if has_row else set()

    assert repaired == expected
    if table.version == 1:
        assert repaired == set()  # ld 2.40 has no entry for it


def test_known_faults_are_recognised_and_nothing_else_is():
    [table] = module_of(FIXTURES / "v1" / "target").sframe
    fde = next(fde for fde in table.fdes() if any(fre.fp for fre in table.rows(fde)))
    fp_slot = next(fre.fp for fre in table.rows(fde) if fre.fp)
    entry = UnwindRow(Rule(SP, 8, deref=False), RA_SLOT, kept=(FP,))
    undefined = entry._replace(ra=None)
    deeper = entry._replace(cfa=Rule(SP, 16, deref=False))
    left_over = entry._replace(kept=(), registers=((FP, fp_slot),))
    invented = entry._replace(kept=(), registers=((FP, Rule(CFA, -800, deref=True)),))

    assert explain(table, fde, entry, undefined) == "_start"
    assert explain(table, fde, deeper, undefined) is None
    assert explain(table, fde, left_over, entry) == "restored"
    assert explain(table, fde, left_over, deeper) is None
    assert explain(table, fde, invented, entry) is None
    assert explain(table, fde, entry, left_over) is None


def libraries() -> Iterator[Path]:
    """Yield every shared library of the standard directories once."""
    seen = set()
    for directory in map(Path, LIBRARY_DIRS):
        for path in sorted(directory.glob("*.so*")) if directory.is_dir() else ():
            real = path.resolve()
            if real.is_file() and real.stat().st_size and real not in seen:
                seen.add(real)
                yield real


def test_libraries_of_this_system():
    looked_at, compared = 0, Counter()
    for path in libraries():
        try:
            module = module_of(path)
        except FormatError:
            continue  # a linker script, a 32-bit library
        looked_at += 1
        if module.image.sframe() is None or module.image.machine != AMD64.machine:
            continue
        assert module.sframe, module.problems
        result = compare(module, every_byte=False)
        assert result.unexplained == [], path
        compared[str(path)] = result.compared
        report(f"{path}: {result.compared} intervals compared, explained: {dict(result.explained)}")
    assert looked_at > 0
    if not compared:
        pytest.skip(f"none of the {looked_at} libraries in {', '.join(LIBRARY_DIRS)} carries SFrame")
    assert all(compared.values()), compared
