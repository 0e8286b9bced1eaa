"""Files with the same symbol table share it; one that was changed, or differs in a byte, never does."""

import mmap
import shutil
from pathlib import Path

import pytest

from sfsample.formats.elf.image import SHT_SYMTAB, ElfImage
from sfsample.symbolize.symbol_table import SymbolTable, SymbolTables
from tests.live.targets import fixture

FUNCTION = "leaf_spin"


def image_of(path: Path) -> ElfImage:
    with path.open("rb") as file:
        return ElfImage(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), str(path))


@pytest.fixture
def copies(tmp_path: Path) -> list[Path]:
    """The files of four containers: the same program, and other files for the kernel."""
    return [Path(shutil.copy(fixture("v3"), tmp_path / str(number))) for number in range(4)]


def table_of(tables: SymbolTables, image: ElfImage) -> SymbolTable:
    found = image.symbols(SHT_SYMTAB)
    assert found is not None
    return tables.table(image, *found)


def start_of(path: Path) -> int:
    """Return the address of the function, which a table of its own knows by name."""
    image = image_of(path)
    symtab, strtab = image.symbols(SHT_SYMTAB) or (b"", b"")
    for offset in range(0, len(symtab), 24):
        name = int.from_bytes(symtab[offset : offset + 4], "little")
        if bytes(strtab[name : name + len(FUNCTION) + 1]) == FUNCTION.encode() + b"\0":
            return int.from_bytes(symtab[offset + 8 : offset + 16], "little")
    raise AssertionError(FUNCTION)


def renamed(path: Path) -> None:
    """Change the name of the function in the file, in place, as the owner of a container can."""
    data = path.read_bytes().replace(b"\0" + FUNCTION.encode() + b"\0", b"\0evil_spin\0")
    with path.open("r+b") as file:
        file.write(data)


def name_at(table: SymbolTable, address: int) -> str:
    found = table.find_stated(address)
    return found.name if found else ""


def test_equal_tables_are_read_once(copies: list[Path]) -> None:
    tables, (first, second, third, _) = SymbolTables(), map(image_of, copies)
    assert table_of(tables, second) is not table_of(tables, first)
    shared = table_of(tables, third)
    assert shared is table_of(tables, second)
    assert name_at(shared, start_of(copies[0])) == FUNCTION


def test_table_that_differs_in_a_name_is_not_shared(copies: list[Path]) -> None:
    renamed(copies[1])
    start = start_of(copies[0])
    tables = SymbolTables()
    names = [name_at(table_of(tables, image_of(path)), start) for path in copies]
    assert names == [FUNCTION, "evil_spin", FUNCTION, FUNCTION]


@pytest.mark.parametrize("owner", [0, 1])
def test_file_that_is_changed_later_gives_no_name_to_another(copies: list[Path], owner: int) -> None:
    start = start_of(copies[0])
    tables = SymbolTables()
    read = [table_of(tables, image_of(path)) for path in copies]
    renamed(copies[owner])
    assert [name_at(table, start) for table in read[2:]] == [FUNCTION, FUNCTION]
    assert name_at(read[owner], start) == ("evil_spin" if owner == 0 else FUNCTION), "the first is no copy"
