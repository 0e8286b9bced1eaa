"""Variables have the names that nm(1) gives them."""

import subprocess

import pytest

from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.variables import variable_at
from tests.live.targets import fixture

BIAS = 0x7F0000000000


def module(data: bytes) -> Module:
    return Module(ElfImage(data, "program"), BIAS, "/program")


def test_every_variable_has_the_name_of_nm() -> None:
    path = fixture("v3")
    listed = subprocess.run(["nm", "-S", path], capture_output=True, text=True, check=True).stdout
    fields = (line.split() for line in listed.splitlines())
    rows = [words for words in fields if len(words) == 4 and words[2] in "bBdDrR"]
    assert rows
    names: dict[int, set[str]] = {}
    for start, _, _, name in rows:
        names.setdefault(int(start, 16), set()).add(name.partition("@")[0])
    modules = [module(path.read_bytes())]
    for start, size, _, _ in rows:
        at = BIAS + int(start, 16)
        assert variable_at(modules, at) in names[int(start, 16)]
        last = variable_at(modules, at + int(size, 16) - 1)
        assert last is not None
        assert last.partition("+")[0] in names[int(start, 16)]
    assert variable_at(modules, BIAS - 1) is None
    assert variable_at(modules, BIAS + (1 << 30)) is None
    assert variable_at([], BIAS) is None


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_symbol_table_raises_nothing(seed: int) -> None:
    data = bytearray(fixture("v3").read_bytes())
    image = ElfImage(bytes(data), "program")
    records, _ = image.symbols() or (memoryview(b""), None)
    table = next(s for s in image.sections if s.name == ".symtab")
    for at in range(seed, len(records), 37):
        data[table.offset + at] ^= 0xA5
    damaged = module(bytes(data))
    for vaddr in range(0, 0x6000, 0x80):
        variable_at([damaged], BIAS + vaddr)
