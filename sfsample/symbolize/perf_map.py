"""Reads names of generated code from /tmp/perf-PID.map, where /tmp and PID are as the target sees them.

Invariant: a map is used only if it is a regular file, and if the target's user or root owns the map, as perf
requires.  If a read fails, only names are lost, and `problem` says so (tests/symbolize/test_perf_map.py).

A JIT reuses memory, so several functions may cover an address.  The last function in the file counts.  A
recording reads the file again and again, and names a place when it samples the place, because the target may
later append another function at this address, or remove the file.  A read begins where the last read ended.
Reads take at most 1/10 of the recording's time.  If a file is too large, sfsample reads only the end of the
file, and says so (`problem`).  No read goes beyond the stated size: /proc files state 0 and may be endless.

Source: Linux, tools/perf/Documentation/jit-interface.txt: lines `START SIZE NAME`, the numbers hexadecimal;
`dso__load_perf_map` in tools/perf/util/symbol.c reads them with strtoull(3).
"""

import os
import re
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, takewhile
from typing import BinaryIO

from sfsample.core.filesystem import ProcessRoot
from sfsample.symbolize.symbol_table import Symbol

_MAX_FILE_BYTES = 128 << 20
_MAX_LINES = 1 << 21  # lines of a file; so many lines take 2 s and 0.2 GB
_MAX_OUTER = 256  # earlier functions that a look-up tries
_ADDRESS_END = 1 << 64
_PAUSE_PER_READ_TIME = 10  # ratio of the pause after a read to the time that the read took
_MAX_NAME_BYTES = 10_000
_STDIO_BYTES = 4096  # bytes of a stdio buffer; at a multiple of this size, a file may end within a line
_TAIL_BYTES = 256  # bytes before the end of a read; if they differ at the next read, the file was rewritten
_BLANKS = rb"[ \t]"
_NUMBER = rb"(?:0[xX])?([0-9a-fA-F]{1,16})"
_LINE = re.compile(rb"^%b*%b%b+%b%b+(?=[^\s])" % (_BLANKS, _NUMBER, _BLANKS, _NUMBER, _BLANKS), re.MULTILINE)


class PerfMap:
    """The functions that a part of a perf map lists, sorted by start address."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        starts, ends, names = _columns(data)
        order = sorted(range(len(starts)), key=starts.__getitem__)
        self._starts = array("Q", map(starts.__getitem__, order))
        self._ends = array("Q", map(ends.__getitem__, order))
        self._names = array("Q", map(names.__getitem__, order))  # offsets in the data
        self._max_ends = array("Q", accumulate(self._ends, max))  # greatest end of the functions so far

    def find(self, address: int) -> Symbol | None:
        """Return the last function in the file that covers an address, or None."""
        best = max(self._covering(address), key=self._names.__getitem__, default=None)
        if best is None:
            return None
        start = self._starts[best]
        return Symbol(self._name(self._names[best]), start, self._ends[best] - start)

    def names(self, address: int) -> set[str]:
        """Return the names of all functions that cover an address."""
        return {self._name(self._names[at]) for at in self._covering(address)}

    def _covering(self, address: int) -> Iterator[int]:
        last = bisect_right(self._starts, address) - 1 if 0 <= address < _ADDRESS_END else -1
        nearby = range(last, max(-1, last - _MAX_OUTER), -1)
        reaching = takewhile(lambda at: self._max_ends[at] > address, nearby)
        return (at for at in reaching if self._ends[at] > address)

    def _name(self, at: int) -> str:
        line = self.data[at : at + _MAX_NAME_BYTES].partition(b"\n")[0]
        return line.decode("utf-8", "replace").rstrip("\r")


def _columns(data: bytes) -> "tuple[array[int], array[int], array[int]]":
    """Return columns for the lines that can be parsed: start and end of the code, offset of the name."""
    starts, ends, names = array("Q"), array("Q"), array("Q")
    for line in _LINE.finditer(data):
        start, size = int(line[1], 16), int(line[2], 16)
        if 0 < size < _ADDRESS_END - start:
            starts.append(start)
            ends.append(start + size)
            names.append(line.end())
    return starts, ends, names


def perf_map_path(process_root: ProcessRoot) -> str:
    """Return the path of the perf map of a process, as the process sees it."""
    return f"/tmp/perf-{process_root.pid}.map"  # noqa: S108 - the documented place


class PerfMapFile:
    """The perf map of one process; the map may grow."""

    def __init__(self, process_root: ProcessRoot | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`process_root`: None if the process is not on this machine."""
        self._process_root, self._clock = process_root, clock
        self._parts: list[PerfMap] = []  # parts of the file, each of complete lines, in file order
        self._newest = PerfMap(b"")  # functions that the last refresh has added
        self._version: tuple[int, ...] = ()  # inode, size and mtime of the file that was read
        self._end = 0  # offset after the last complete line that was read
        self._tail = b""  # the bytes before `_end`
        self._next_read = 0.0  # earliest time of the next read, in seconds of the clock
        self.problem = ""  # text about a file that was not read completely; "": none

    @property
    def was_read(self) -> bool:
        """True if a perf map was read."""
        return bool(self._version)

    def find(self, address: int) -> Symbol | None:
        """Return the function that covered an address at the last refresh; None: the map has none."""
        return next((function for part in reversed(self._parts) if (function := part.find(address))), None)

    def names(self, address: int) -> set[str]:
        """Return the names of all functions that were at an address up to the last refresh."""
        return {name for part in self._parts for name in part.names(address)}

    def has_just_changed(self, address: int) -> bool:
        """Return True if the last refresh has put a function at an address where another function was."""
        return self._newest.find(address) is not None and len(self.names(address)) > 1

    def refresh(self) -> bool:
        """Read the bytes that were appended since the last call; return False if there is nothing to read."""
        self._newest = PerfMap(b"")
        process_root, begun = self._process_root, self._clock()
        if process_root is None or process_root.root is None or begun < self._next_read:
            return False
        path = perf_map_path(process_root)
        try:
            fd = process_root.root.open(path, follow=False)
        except OSError:
            return False
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if not status.st_size or status.st_uid not in (0, process_root.uid) or version == self._version:
                return False
            is_same_file, self._version = version[:1] == self._version[:1], version
            try:
                self._read(file, path, status.st_size, is_same_file=is_same_file)
            except (OSError, MemoryError) as failure:
                why = getattr(failure, "strerror", None) or "there is not enough memory"
                self.problem = f"{path}: cannot be read: {why}"
        self._next_read = begun + (1 + _PAUSE_PER_READ_TIME) * (self._clock() - begun)
        return True

    def _read(self, file: BinaryIO, path: str, size: int, *, is_same_file: bool) -> None:
        file.seek(self._end - len(self._tail))
        if not is_same_file or size < self._end or file.read(len(self._tail)) != self._tail:
            self._parts, self._end = [], 0  # file that was rewritten
        data = _read_end(file, self._end, size)
        if len(data) < size - self._end:
            self.problem = f"{path}: the first {size - len(data)} of {size} bytes were not read"
            self._parts = []
        lines, newline, unfinished = data.rpartition(b"\n")
        self._end = size - len(unfinished)
        whole_lines = lines + newline
        self._tail = ((self._tail if self._parts else b"") + whole_lines)[-_TAIL_BYTES:]
        # A last line without a newline counts, unless stdio may have written only a part of the line.
        self._newest = PerfMap(data + b"\n" if unfinished and size % _STDIO_BYTES else whole_lines)
        self._add(self._newest)

    def _add(self, part: PerfMap) -> None:
        """Add a part.  If the parts together are too large, drop the first parts.  Join small last parts."""
        while self._parts and sum(len(p.data) for p in (*self._parts, part)) > _MAX_FILE_BYTES:
            dropped = self._parts.pop(0)
            self.problem = f"the perf map is too large: {len(dropped.data)} of its bytes are no longer used"
        while self._parts and len(self._parts[-1].data) <= 2 * len(part.data):
            part = PerfMap(self._parts.pop().data + part.data)
        self._parts.append(part)


class PerfMaps:
    """The perf maps of several processes, by process key."""

    def __init__(
        self, process_roots: Mapping[int, ProcessRoot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process_roots, self._clock = process_roots, clock
        self._files: dict[int, PerfMapFile] = {}

    def find(self, pid: int, address: int) -> Symbol | None:
        """Return the generated function of process `pid` at an address, or None."""
        if pid not in self._files:
            self._files[pid] = PerfMapFile(self._process_roots.get(pid), self._clock)
        file = self._files[pid]
        function = file.find(address)
        if function is None and file.refresh():
            function = file.find(address)
        return function

    def is_reused(self, pid: int, address: int) -> bool:
        """Return True if several functions of process `pid` have been at an address."""
        return pid in self._files and len(self._files[pid].names(address)) > 1

    def has_map(self, pid: int) -> bool:
        """Return True if `find` has read a perf map of process `pid`."""
        return pid in self._files and self._files[pid].was_read

    @property
    def problems(self) -> dict[int, str]:
        """Texts about files that were not read completely, by process key."""
        return {pid: file.problem for pid, file in self._files.items() if file.problem}


def _read_end(file: BinaryIO, at: int, size: int) -> bytes:
    """Return the bytes from `at` on; if too many, only the last lines.  Raises OSError or MemoryError."""
    begin = max(at, size - _MAX_FILE_BYTES)
    file.seek(begin)
    data = file.read(size - begin)
    if begin > at:
        data = data.partition(b"\n")[2]
    while data.count(b"\n") > _MAX_LINES:
        data = data[len(data) // 2 :].partition(b"\n")[2]
    return data
