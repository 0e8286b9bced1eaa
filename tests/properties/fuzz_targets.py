"""Fuzz targets: a function for each kind of foreign bytes, for `scripts/fuzz` and the smoke test.

A target reads everything that can be read from the bytes, a bounded number of times each, and returns
nothing. `FormatError` is an expected answer; any other exception is a finding.  Nothing here needs pytest or
atheris. `seeds` gives real sections to start from, in the layout of the target.
"""

import lzma
from collections.abc import Callable, Iterator
from contextlib import suppress
from gzip import decompress
from itertools import islice
from pathlib import Path
from struct import error as struct_error
from struct import pack, unpack_from

from sfsample.core.memory import BytesMemory
from sfsample.errors import BadInput, FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from sfsample.formats.dwarf.expression import evaluate
from sfsample.formats.elf.image import ElfImage, build_id_of, notes
from sfsample.formats.sframe import HEADER_SIZE, SFrameTable, read_tables
from sfsample.inspect.coverage import measure_coverage
from sfsample.modules.module import Module
from sfsample.process.core_process import CoreProcess
from sfsample.process.proc_text import (
    cgroup_paths,
    container_ids,
    control_group_paths,
    parse_cpu_idle,
    parse_last_run,
    parse_schedstat,
    parse_stat,
    parse_status,
    parse_syscall,
)
from sfsample.report.formats import folded, parse, pprof, profile_json
from sfsample.unwind.row import apply_row
from sfsample.unwind.steppers.sframe import to_row
from sfsample.unwind.unwinder import Unwinder
from tests.builders.debug_frame_builder import section as debug_frame_section
from tests.builders.reports import full
from tests.builders.symbol_tables import SymbolTable
from tests.properties.fuzz_names import NAMES
from tests.properties.fuzz_names import SEEDS as NAME_SEEDS

FIXTURES = Path(__file__).parent.parent / "fixtures"
CRASH = FIXTURES / "v3" / "crash"
LIBC = [Path("/lib/x86_64-linux-gnu/libc.so.6"), Path("/lib64/libc.so.6")]
ADDRESS = 0x2000
STACK = 0x7000
MAX_ITEMS = 30  # functions, entries or rows that are read from one input


def _inside(damage: FormatError, end: float = float("inf")) -> None:
    assert 0 <= damage.offset < end


# -- SFrame: one byte of options, then the section


def sframe(data: bytes) -> None:
    """Read tables, functions, rows, the row at addresses, and problems; execute each row."""
    options, section = data[:1] or b"\0", data[1:]
    executable = [(0x1000, 0x9000)] if options[0] & 1 else []
    try:
        tables = read_tables(section, ADDRESS, executable=executable)
    except FormatError as refusal:
        _inside(refusal, HEADER_SIZE)
        return
    assert len(tables) * HEADER_SIZE <= len(section)
    for table in tables[:MAX_ITEMS]:
        _table(table, len(section))
        for start, end in islice(table.extents(), MAX_ITEMS):
            for covering in tables.covering((start + end) // 2):
                _row_at(covering, (start + end) // 2)


def _table(table: SFrameTable, size: int) -> None:
    assert table.used <= size
    for fde in islice(table.fdes(), MAX_ITEMS):
        try:
            rows = table.rows(fde)
        except FormatError as damage:
            _inside(damage)
            continue
        assert len(rows) == fde.num_fres
        for vaddr in (fde.start - 1, fde.start, fde.start + fde.size // 2, fde.start + fde.size - 1):
            _row_at(table, vaddr)
    assert all(isinstance(text, str) for text in table.check())
    assert len(table.problems) <= 51


def _row_at(table: SFrameTable, vaddr: int) -> None:
    try:
        fre = table.row_at(vaddr)
    except FormatError as damage:
        _inside(damage)
        return
    if fre is None:
        return
    assert fre.problem is None
    row, arch = to_row(fre, table), table.abi.arch
    if row.ra is not None:
        memory = BytesMemory(STACK, bytes(range(64)), arch.byteorder)
        apply_row(row, {arch.sp: STACK, arch.fp: STACK + 16, arch.pc: vaddr % 2**64}, memory, arch)


# -- .eh_frame: distance to .eh_frame_hdr (i32), length of that (u16, 0: none), its bytes, the section


def eh_frame(data: bytes) -> None:
    """Read the entries, run their programs, look up addresses by table and by walk."""
    if len(data) < 6:
        return
    distance, size = unpack_from("<iH", data)
    hdr, section = data[6 : 6 + size], data[6 + size :]
    hdr_vaddr = 0x1_0000_0000
    vaddr = hdr_vaddr + distance
    if hdr:
        with suppress(FormatError):
            assert 0 <= eh_frame_address(hdr, hdr_vaddr, "little") < 1 << 64
    for frames in (EhFrame(section, vaddr, "little", hdr, hdr_vaddr), EhFrame(section, vaddr, "little")):
        _frames(frames, len(section))


def debug_frame(data: bytes) -> None:
    """Read the bytes as .debug_frame."""
    _frames(EhFrame(data, 0, "little", debug=True), len(data))


def _frames(frames: EhFrame, size: int) -> None:
    starts = [0, 0x1_0000_0000]
    for fde in islice(frames.fdes(), MAX_ITEMS):
        assert 0 <= fde.offset < fde.program_begin <= fde.program_end <= size
        starts += [fde.start, fde.start + fde.size - 1]
        try:
            rows = list(islice(frames.rows(fde), MAX_ITEMS))
        except FormatError:
            continue
        for _, row in rows:
            for rule in row.rules.values():
                if rule is not None and rule.expression:
                    dwarf_expr(b"\0" + rule.expression)
    for start in starts:
        try:
            frames.row_at(start)
        except FormatError as damage:
            _inside(damage)


# -- DWARF expressions: one byte of options, then the expression


def dwarf_expr(data: bytes) -> None:
    """Evaluate: the value is a word or None."""
    options, expression = data[:1] or b"\0", data[1:]
    registers = {number: STACK + 8 * number for number in range(17)}
    memory = BytesMemory(STACK, bytes(range(256)))
    value = evaluate(expression, registers, memory, "little" if options[0] & 1 else "big",
                     STACK if options[0] & 2 else None)  # fmt: skip
    assert value is None or 0 <= value < 1 << 64


# -- ELF: a whole file


def elf(data: bytes) -> None:
    """Read headers, sections, notes and symbols, then the tables of the module, as sfsample does."""
    build_id_of(notes(memoryview(data[:4096]), "little"))
    try:
        image = ElfImage(data, "fuzzed")
    except FormatError:
        return
    assert all(isinstance(section.name, str) for section in image.sections)
    for section in image.sections[:MAX_ITEMS]:
        assert len(image.contents(section)) <= len(data)
        image.section(section.name)
    for segment in image.segments[:MAX_ITEMS]:
        image.loaded(segment.vaddr)
        image.loaded(segment.vaddr, 16)
        image.load_bias(0x40_0000, segment.offset, executable=True)
    assert image.build_id is None or int(image.build_id, 16) >= 0
    found = image.symbols()
    if found is not None:
        _symbols(SymbolTable(*found, image.byteorder, image.code_sections), 0)
    module = Module(image, 0, "fuzzed")
    if sum(table.num_fdes for table in module.tables.sframe) < 1000:
        assert 0 <= measure_coverage(module).uncovered_bytes <= measure_coverage(module).text_bytes
    for start, _ in image.executable[:MAX_ITEMS]:
        module.code(start, 16)


# -- symbol tables: length of the records (u32), the records, the names


def symtab(data: bytes) -> None:
    """Index the records and look up their own addresses."""
    try:
        (size,) = unpack_from("<I", data)
    except struct_error:
        return
    records, names = data[4 : 4 + size], data[4 + size :]
    for executable in ((), [(0x1000, 0x9000)], [(0, 1 << 64)]):
        table = SymbolTable(records, names, "little", executable)
        for at in range(0, min(len(records), 24 * MAX_ITEMS), 24):
            if at + 24 <= len(records):
                _symbols(table, unpack_from("<Q", records, at + 8)[0])


def _symbols(table: SymbolTable, vaddr: int) -> None:
    for address in (vaddr - 1, vaddr, vaddr + 1, 0x1234):
        symbol = table.find(address)
        assert symbol is None or (symbol.name and symbol.start <= address)


Target = Callable[[bytes], None]
# -- core files


def core(data: bytes) -> None:
    """Read the notes and the map, unwind the threads, read memory at the ends of mappings."""
    try:
        target = CoreProcess(ElfImage(data, "core"), str(CRASH))
    except FormatError as refusal:
        _inside(refusal)
        return
    assert len(target.threads()) * 112 <= len(data)
    unwinder = Unwinder(target.modules, max_frames=MAX_ITEMS)
    for thread in target.threads()[:MAX_ITEMS]:
        snapshot = target.snapshot(thread)
        if not isinstance(snapshot, str):
            assert len(unwinder.walk(snapshot).frames) <= MAX_ITEMS
    for mapping in target._maps()[:MAX_ITEMS]:
        for address in (mapping.start - 4, mapping.start, mapping.end - 4):
            found = target.memory.read(address, 8)
            assert found is None or len(found) == 8
    assert all(isinstance(text, str) for text in target.problems)


# -- words of others: a profile; a text of /proc


def profile(data: bytes) -> None:
    """Read a profile in any format, and write what was read."""
    try:
        report = parse(data)
    except BadInput:
        return
    assert parse(profile_json.write(report, threads=False)) == report
    pprof.write(report, threads=False)


def proc_text(data: bytes) -> None:
    """Parse it as each file of /proc."""
    text = data.decode("utf-8", "replace")
    for parser in (parse_stat, parse_syscall, parse_schedstat, parse_last_run):
        parser(data)
    for reader in (parse_status, control_group_paths, container_ids, cgroup_paths, parse_cpu_idle):
        reader(text)


_ALL = (profile, proc_text, sframe, eh_frame, debug_frame, dwarf_expr, elf, symtab, core, *NAMES)
TARGETS: dict[str, Target] = {target.__name__: target for target in _ALL}


# -- seeds


def fixtures() -> list[Path]:
    """Return the programs of every generation."""
    return sorted(path.with_suffix("") for path in FIXTURES.glob("v*/*.readelf"))


def seeds(target: str) -> Iterator[bytes]:
    """Yield valid inputs of a target."""
    files = fixtures()
    if target == "elf":
        yield from (path.read_bytes() for path in files if path.stat().st_size < 1 << 16)
        return
    if target == "core":
        yield from (lzma.decompress(path.read_bytes()) for path in sorted(FIXTURES.glob("cores/*.xz")))
        return
    if target == "debug_frame":
        yield from _debug_frame_seeds()
        return
    if target == "profile":
        report = full()
        yield from (module.write(report, threads=False) for module in (profile_json, folded, pprof))
        yield from (b"a;b 1\n", decompress(pprof.write(report, threads=False)))
        return
    if target == "proc_text":
        yield b"7 (a) S 1 " + b" ".join(b"%d" % at for at in range(5, 53))
        yield from (b"232 0x5 0x6 0x7", b"1 2 3", b"se.exec_start : 1.5\nnr_switches : 7\n",
                    b"0::/docker/" + b"a" * 64 + b"\n", b"cpu0 1 2 3 4 5 6 7\n")  # fmt: skip
        return
    if target in NAME_SEEDS:
        yield from NAME_SEEDS[target](files)
        return
    if target in ("eh_frame", "dwarf_expr"):
        files += [path for path in LIBC if path.exists()][:1]
    for path in files:
        yield from SEEDS[target](ElfImage(path.read_bytes(), path.name))


def _sframe_seeds(image: ElfImage) -> Iterator[bytes]:
    found = image.sframe()
    if found is not None:
        yield b"\0" + bytes(found[0][:4000])
        yield b"\3" + bytes(found[0][:4000])


def _eh_frame_seeds(image: ElfImage) -> Iterator[bytes]:
    """Yield the first entries, with a header of at most 20 table entries."""
    header = image.eh_frame_hdr()
    section = image.section(".eh_frame")
    if header is None or section is None:
        return
    hdr, hdr_vaddr = header
    count = min(20, (len(hdr) - 12) // 8)
    table = bytes(hdr[:8]) + pack("<I", count) + bytes(hdr[12 : 12 + 8 * count])
    yield pack("<iH", section.vaddr - hdr_vaddr, len(table)) + table + bytes(image.contents(section)[:3000])


def _debug_frame_seeds() -> Iterator[bytes]:
    for wide in (False, True):
        for version in (1, 3, 4):
            yield debug_frame_section(wide=wide, version=version)


def _expression_seeds(image: ElfImage) -> Iterator[bytes]:
    section = image.section(".eh_frame")
    if section is None:
        return
    seen = set()
    frames = EhFrame(image.contents(section), section.vaddr, image.byteorder)
    for fde in islice(frames.fdes(), 5000):
        for _, row in frames.rows(fde):
            for expression in (row.cfa.expression, *(rule.expression for rule in row.rules.values() if rule)):
                if expression and expression not in seen:
                    seen.add(expression)
                    yield b"\3" + expression


def _symtab_seeds(image: ElfImage) -> Iterator[bytes]:
    found = image.symbols()
    if found is not None:
        records, names = found[0][: 24 * 60], found[1]
        yield pack("<I", len(records)) + bytes(records) + bytes(names[:3000])


SEEDS: dict[str, Callable[[ElfImage], Iterator[bytes]]] = {
    "sframe": _sframe_seeds, "eh_frame": _eh_frame_seeds, "dwarf_expr": _expression_seeds,
    "symtab": _symtab_seeds}  # fmt: skip
