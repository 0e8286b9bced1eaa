"""The table of Go functions, compared with what Go's own `addr2line` says of the same program with symbols.

The programs have no symbols (tests/fixtures/src/busy.go, scripts/build-go-fixtures).
"""

import lzma
import random
import struct
from functools import cache
from pathlib import Path

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf.image import PF_W, PT_LOAD, ElfImage
from sfsample.formats.gopclntab.find import find_table, find_wait_reasons
from sfsample.formats.gopclntab.places import places_at
from sfsample.formats.gopclntab.table import GoTable
from tests.builders.go_tables import functions

FIXTURES = Path(__file__).parents[2] / "fixtures" / "go"
VERSIONS = ("1.19", "1.24", "1.27")


@cache
def program(version: str) -> bytes:
    return lzma.decompress((FIXTURES / f"busy-{version}.xz").read_bytes())


def places(version: str) -> list[tuple[int, str, str]]:
    """Return address, function, and "file:line" of each place that Go's tool has named."""
    lines = (FIXTURES / f"busy-{version}.places").read_text().splitlines()
    return [
        (int(address, 16), function, where) for address, function, where in (s.split("\t") for s in lines)
    ]


def without_sections(data: bytes) -> bytes:
    """Return a program whose ELF header says that there are no section headers."""
    header = bytearray(data)
    struct.pack_into("<Q", header, 0x28, 0)  # e_shoff
    struct.pack_into("<H", header, 0x3C, 0)  # e_shnum
    return bytes(header)


def table_of(data: bytes) -> GoTable:
    table = find_table(ElfImage(data, "busy"))
    assert table is not None
    return table


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("change", [bytes, without_sections])
def test_functions_files_and_lines_are_those_of_addr2line(version, change):
    table = table_of(change(program(version)))
    for address, function, where in places(version):
        innermost, *_, outermost = [*(found := places_at(table, address, address)), found[-1]]
        assert (outermost.function, f"{innermost.file}:{innermost.line}") == (function, where)


@pytest.mark.parametrize("version", VERSIONS)
def test_inlined_calls_are_listed_from_the_innermost(version):
    table = table_of(program(version))
    wanted = ["main.add", "main.double", "main.fourfold", "main.spin"]
    start = next(f for f in functions(table) if f.name == "main.spin")
    chains = [[place.function for place in places_at(table, pc, pc)] for pc in range(start.entry, start.end)]
    assert wanted in chains
    assert all(chain[-1] == "main.spin" for chain in chains)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_return_address_belongs_to_the_function_that_it_lies_in(version):
    table = table_of(program(version))
    function = next(f for f in functions(table) if f.name == "runtime.systemstack_switch")
    [place] = places_at(table, function.entry, function.entry - 1)
    assert place.function == "runtime.systemstack_switch"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_version_is_stated(version):
    table = table_of(program(version))
    assert table.version.startswith(f"go{version}.")
    assert table.minor == int(version.removeprefix("1."))


def test_addresses_outside_of_go_code_have_no_function():
    table = table_of(program("1.24"))
    assert table.function_at(table.module.first_pc - 1) is None
    assert table.function_at(table.module.end_pc) is None


def test_a_program_without_go_has_no_table():
    image = ElfImage((FIXTURES.parent / "v3" / "workload").read_bytes(), "workload")
    assert find_table(image) is None


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (8, 1 << 40, "the parts do not fit"),  # number of functions
        (32, 1 << 40, "the parts do not fit"),  # offset of the names
        (6, 0, "no header"),  # smallest size of an instruction
    ],
)
def test_a_damaged_header_is_refused(offset, value, message):
    data = bytearray(program("1.24"))
    at = ElfImage(bytes(data), "busy").section(".gopclntab").offset
    struct.pack_into("<Q" if offset > 7 else "<B", data, at + offset, value)
    with pytest.raises(FormatError, match=message):
        find_table(ElfImage(bytes(data), "busy"))


def test_a_table_to_which_no_moduledata_refers_is_refused():
    data = bytearray(program("1.24"))
    image = ElfImage(bytes(data), "busy")
    vaddr = image.section(".gopclntab").vaddr.to_bytes(8, "little")
    for segment in (s for s in image.segments if s.type == PT_LOAD and s.flags & PF_W):
        end = segment.offset + segment.filesz
        data[segment.offset : end] = data[segment.offset : end].replace(vaddr, bytes(8))
    with pytest.raises(FormatError, match="no moduledata refers to the table"):
        find_table(ElfImage(bytes(data), "busy"))


class _Counted(GoTable):
    """A table that counts the numbers which it reads."""

    numbers = 0

    def _varint(self, at):
        self.numbers += 1
        return super()._varint(at)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(20))
def test_look_ups_in_a_damaged_table_end_soon(version, seed):
    data, draw = bytearray(program(version)), random.Random(seed)  # noqa: S311 - the same damage in each run
    section = ElfImage(bytes(data), "busy").section(".gopclntab")
    for _ in range(2000):
        data[section.offset + 72 + draw.randrange(section.size - 72)] = draw.choice((0, 0x7F, 0x80, 0xFF))
    plain = table_of(bytes(data))
    table = _Counted(plain.image, plain._data, plain.header, plain.module, plain.version)
    for _ in range(100):
        pc = draw.randrange(plain.module.first_pc, plain.module.end_pc)
        table.numbers = 0
        try:
            function = table.function_at(pc)
            table.depth_at(function, pc)
            places_at(table, pc, pc)
        except FormatError:
            pass  # said once, by the module
        assert table.numbers < 500_000


def test_a_library_for_aarch64_has_its_addresses_in_its_relocations_only():
    data = lzma.decompress((FIXTURES / "aarch64/shared-1.24.xz").read_bytes())
    table = find_table(ElfImage(data, "shared"))
    assert table.version == "go1.24.4"
    [tree] = [function for function in functions(table) if function.name == "main.tree"]
    assert places_at(table, tree.entry, tree.entry)[-1].file.endswith("shared.go")
    [inlined] = [f for f in functions(table) if f.name == "runtime.mallocgc"]
    assert any(len(places_at(table, pc, pc)) > 1 for pc in range(inlined.entry, inlined.end, 4))
    assert {"chan receive", "GC assist marking"} <= {*find_wait_reasons(table)}
