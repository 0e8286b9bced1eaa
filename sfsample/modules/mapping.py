"""Parses /proc/PID/maps (proc(5)) into `Mapping` values, in address order; skips lines that do not parse."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfsample.core.checkpoint import checkpoint

_DELETED = " (deleted)"  # suffix that the kernel appends to the path of a deleted file
# arguments: path, inode; True: the file at this path has this inode
IsThere = Callable[[str, int], bool]


def split_mark(path: str, is_there: Callable[[str], bool]) -> tuple[str, bool]:
    """Return a path from the kernel without the mark of a deleted file, and True if the path had the mark.

    If the name of a file really ends in the mark, `is_there` returns True for the path.
    """
    deleted = path.startswith("/") and path.endswith(_DELETED) and not is_there(path)
    return path.removesuffix(_DELETED) if deleted else path, deleted


class Place(NamedTuple):
    """The part of a file that is mapped at some addresses; all zeros: nothing is mapped."""

    start: int = 0
    end: int = 0
    offset: int = 0  # bytes from the start of the file
    inode: int = 0
    major: int = 0  # numbers of the device
    minor: int = 0


class Mapping(NamedTuple):
    """One mapping of a process."""

    start: int
    end: int
    readable: bool
    executable: bool
    offset: int  # bytes from the start of the file
    device: str  # text "major:minor"
    inode: int
    path: str  # path as the target sees it; "": anonymous memory
    deleted: bool  # True: the path no longer leads to this file

    @property
    def is_file(self) -> bool:
        """True if a file is mapped."""
        return self.path.startswith("/") and self.inode != 0

    @property
    def place(self) -> Place:
        """The part of the file that is mapped."""
        major, _, minor = self.device.partition(":")
        return Place(self.start, self.end, self.offset, self.inode, int(major, 16), int(minor, 16))


def base_of(mapping: Mapping, maps: Sequence[Mapping]) -> int | None:
    """Return where the first byte of a mapping's file is mapped, at or below the mapping; or None."""
    file = mapping.path, mapping.inode
    below = (other for other in reversed(maps) if other.start <= mapping.start)
    return next((m.start for m in below if (m.path, m.inode) == file and not m.offset), None)


class MapsParser:
    """Parses the maps of one process repeatedly; only lines that are new are parsed.

    In paths the kernel escapes only the newline, as octal 012.  `parse` of an unchanged text returns the same
    tuple object.
    """

    def __init__(self, is_there: IsThere = lambda *_: False) -> None:
        self._is_there = is_there
        self._data = b""
        self._parsed_lines: dict[str, Mapping | None] = {}
        self._mappings: tuple[Mapping, ...] = ()

    def parse(self, data: bytes) -> tuple[Mapping, ...]:
        """Parse the present content of the file."""
        if data != self._data:
            lines, parsed = data.decode("utf-8", "surrogateescape").split("\n"), self._parsed_lines
            self._parsed_lines = {
                line: parsed[line] if line in parsed else _parse_line(line, self._is_there) for line in lines
            }
            self._data, self._mappings = data, tuple(filter(None, self._parsed_lines.values()))
        return self._mappings


def _parse_line(line: str, is_there: IsThere) -> Mapping | None:
    checkpoint()
    fields = line.split(None, 5)
    if len(fields) < 5:
        return None
    span, permissions, offset, device, inode = fields[:5]
    text = fields[5].replace(r"\012", "\n") if len(fields) == 6 else ""
    try:
        path, deleted = split_mark(text, lambda path: is_there(path, int(inode)))
        start, _, end = span.partition("-")
        return Mapping(
            start=int(start, 16), end=int(end, 16), readable=permissions[0] == "r",
            executable=permissions[2] == "x", offset=int(offset, 16), device=device, inode=int(inode),
            path=path, deleted=deleted,
        )  # fmt: skip
    except (ValueError, IndexError):
        return None
