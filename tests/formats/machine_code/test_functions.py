"""The search for function starts ends, whatever the code is."""

from sfsample.core.arch import AMD64
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code import functions as module
from sfsample.formats.machine_code.functions import find_function_starts
from tests.builders import elf_builder as e

# functions of 16 bytes, each of which calls the next: call +11; ret; padding
CODE = (b"\xe8\x0b\0\0\0\xc3" + b"\x90" * 10) * 8


def test_targets_are_counted(monkeypatch):
    image = ElfImage(e.elf([e.Load(0x1000, CODE)], machine=AMD64.machine), "x")
    assert find_function_starts(image) == [0x1000 + 16 * n for n in range(1, 8)]
    monkeypatch.setattr(module, "_MAX_TARGETS", 3)
    assert find_function_starts(image) == [0x1000 + 16 * n for n in range(1, 4)]


def test_code_in_many_segments_is_not_searched():
    """For each target each segment is asked: a file of 16 MB took minutes."""
    segments = [e.Load(0x1000 + 0x1000 * n, CODE) for n in range(17)]
    assert find_function_starts(ElfImage(e.elf(segments[:16], machine=AMD64.machine), "x"))
    assert find_function_starts(ElfImage(e.elf(segments, machine=AMD64.machine), "x")) == []
