"""Files that are gone are copied from the memory of the process, which may be hostile: here, of the test."""

import ctypes
import os
from types import SimpleNamespace

import pytest

from sfsample.errors import FormatError
from sfsample.formats.elf.image import PT_LOAD
from sfsample.modules.mapping import Mapping
from sfsample.process import image_opener
from sfsample.process.image_cache import ImageCache
from sfsample.process.image_opener import ImageOpener
from tests.builders import elf_builder
from tests.builders.core_builder import Load, core

PAGE = 4096
LIMIT = 10 * PAGE


def opened(loads: int, monkeypatch: pytest.MonkeyPatch) -> tuple[ImageOpener, Mapping, list[int]]:
    """Return the opener of a file that is gone, of so many segments that lie one over the other."""
    room = ctypes.create_string_buffer(6 * PAGE)
    base = (ctypes.addressof(room) + PAGE - 1) & -PAGE
    header = bytearray(core(b"", *[Load(0, b"\0" * 8, flags=5)] * loads, kind=3)[:PAGE])
    first, size = int.from_bytes(header[32:40], "little"), 56  # of a program header
    for at in range(first, first + size * (header[56] | header[57] << 8), size):
        if int.from_bytes(header[at : at + 4], "little") == PT_LOAD:
            header[at + 8 : at + 48] = b"".join(
                n.to_bytes(8, "little") for n in (0, 0, 0, 4 * PAGE, 4 * PAGE)
            )
    ctypes.memmove(base, bytes(header), PAGE)
    mapping = Mapping(base, base + 4 * PAGE, True, True, 0, "08:01", 7, "/gone", True)
    proc = SimpleNamespace(pid=os.getpid(), anchor=os.getpid, maps=lambda: (mapping,), kept=room)
    sizes: list[int] = []

    def read(pid: int, address: int, size: int) -> bytes | None:
        sizes.append(size)
        return ctypes.string_at(address, size)

    monkeypatch.setattr(image_opener, "read_memory", read)
    monkeypatch.setattr(image_opener, "_MAX_REBUILT_BYTES", LIMIT)
    opener = ImageOpener(proc, ImageCache(), None)  # type: ignore[arg-type]
    return opener, mapping, sizes


def test_files_of_a_process_are_copied_from_memory_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    opener, mapping, sizes = opened(1, monkeypatch)
    for _ in range(2):
        assert opener(mapping) is not None
    with pytest.raises(FormatError, match="too many to copy"):
        opener._rebuild(mapping)
    assert sum(size for size in sizes if size > PAGE) <= LIMIT


def test_segments_that_overlap_count_each(monkeypatch: pytest.MonkeyPatch) -> None:
    opener, mapping, sizes = opened(8, monkeypatch)
    with pytest.raises(FormatError, match="too many to copy"):
        opener._rebuild(mapping)
    assert sizes == [PAGE]


NO_PROCESS = 0  # pid without /proc/PID/map_files, as for a user without permission to look there
TEXT = 0x1000


@pytest.mark.parametrize("head_is_mapped", [False, True])
def test_head_of_a_file_is_compared_only_where_it_is_mapped(tmp_path, monkeypatch, head_is_mapped):
    """One page of the file lies within another file, whose bytes are at the place of its head."""
    build_id = elf_builder.Load(0x200, elf_builder.note(bytes(20)), flags=4, type=4, offset=0x200)
    whole = elf_builder.Load(0, bytes(2 * PAGE), offset=0)
    path = tmp_path / "b.so"
    path.write_bytes(elf_builder.elf([whole, build_id]))
    page = Mapping(0x5000, 0x6000, True, True, TEXT, "08:01", path.stat().st_ino, str(path), False)
    head = page._replace(start=0x4000, end=0x5000, offset=0)
    maps = (head, page) if head_is_mapped else (page,)
    proc = SimpleNamespace(pid=NO_PROCESS, anchor=lambda: NO_PROCESS, maps=lambda: maps)
    monkeypatch.setattr(image_opener, "read_memory", lambda _pid, _address, size: b"a" * size)
    opener = ImageOpener(proc, ImageCache(), None)

    if head_is_mapped:
        with pytest.raises(FormatError, match="another file is at this path now"):
            opener(page)
    else:
        assert opener(page).build_id == "00" * 20
