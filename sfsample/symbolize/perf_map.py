"""Reads names of generated code from /tmp/perf-PID.map, in the target's own root and by its own pid.

Invariant: a map is used only if it is a regular file of the target's user or root, as perf requires; if a
read fails, only names are lost, and `problems` says so (tests/symbolize/test_perf_map.py).

A JIT reuses memory, so several functions may cover an address.  The last in the file counts.  For the same
reason only the end of a file is read if it is too large, and that is reported.  No more bytes are read than
the size that the file states: files of /proc state 0, and some have no end.  Names are not cleaned here.

If an address is not found and the file has changed, the map is read again, but reading takes at most a tenth
of the time.

Source: Linux, tools/perf/Documentation/jit-interface.txt: lines `START SIZE NAME`, the numbers hexadecimal.
"""

import os
import re
import time
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import accumulate, takewhile
from typing import BinaryIO

from sfsample.core.filesystem import ProcessRoot
from sfsample.symbolize.symbol_table import Symbol

_MAX_FILE_BYTES = 128 << 20
_MAX_LINES = 1 << 21  # lines of a file; they take 2 s and 0.2 GB
_MAX_OUTER = 256  # earlier functions that a look-up tries
_ADDRESS_END = 1 << 64
_PAUSE_PER_READ_TIME = 10  # ratio of the pause after a read to the time that the read took
_MAX_NAME_BYTES = 10_000
_NUMBER = rb"((?:0x)?[0-9a-fA-F]{1,16}) "
_LINE = re.compile(rb"^%b%b(?=[^\n]*\S)" % (_NUMBER, _NUMBER), re.MULTILINE)


class PerfMap:
    """The functions that one perf map lists, sorted by start address."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        starts, ends, names = _columns(data)
        order = sorted(range(len(starts)), key=starts.__getitem__)
        self._starts = array("Q", map(starts.__getitem__, order))
        self._ends = array("Q", map(ends.__getitem__, order))
        self._names = array("Q", map(names.__getitem__, order))  # offsets in the data
        self._max_ends = array("Q", accumulate(self._ends, max))  # greatest end of the functions so far

    def find(self, address: int) -> Symbol | None:
        """Return the function that covers an address, or None; of several, the last in the file."""
        last = bisect_right(self._starts, address) - 1 if 0 <= address < _ADDRESS_END else -1
        nearby = range(last, max(-1, last - _MAX_OUTER), -1)
        reaching = takewhile(lambda at: self._max_ends[at] > address, nearby)
        covering = (at for at in reaching if self._ends[at] > address)
        best = max(covering, key=self._names.__getitem__, default=None)  # last function in the file
        if best is None:
            return None
        start = self._starts[best]
        return Symbol(self._name(self._names[best]), start, self._ends[best] - start)

    def _name(self, at: int) -> str:
        line = self._data[at : at + _MAX_NAME_BYTES].partition(b"\n")[0]
        return line.decode("utf-8", "replace").rstrip("\r")


def _columns(data: bytes) -> "tuple[array[int], array[int], array[int]]":
    """Return columns: start, end and offset of the name of each line that can be parsed."""
    starts, ends, names = array("Q"), array("Q"), array("Q")
    for line in _LINE.finditer(data, 0, data.rfind(b"\n") + 1):  # whole lines: the last may not be finished
        start, size = int(line[1], 16), int(line[2], 16)
        if 0 < size < _ADDRESS_END - start:
            starts.append(start)
            ends.append(start + size)
            names.append(line.end())
    return starts, ends, names


def perf_map_path(process_root: ProcessRoot) -> str:
    """Return the path of the perf map of a process, as the process sees it."""
    return f"/tmp/perf-{process_root.pid}.map"  # noqa: S108 - the documented place


class PerfMaps:
    """The perf maps of several processes, by process key."""

    def __init__(
        self, process_roots: Mapping[int, ProcessRoot], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._process_roots, self._clock = process_roots, clock
        self._maps: defaultdict[int, PerfMap] = defaultdict(lambda: PerfMap(b""))
        self.versions: dict[int, tuple[int, ...]] = {}  # inode, size and mtime of each file that was read
        self._next_read: dict[int, float] = {}  # earliest time of the next read, in seconds of the clock
        self.problems: dict[int, str] = {}  # text about a file that was not read, or not whole

    def find(self, pid: int, address: int) -> Symbol | None:
        """Return the generated function of process `pid` at an address, or None."""
        function = self._maps[pid].find(address)
        if function is None:
            self._refresh(pid)
            function = self._maps[pid].find(address)
        return function

    def _refresh(self, pid: int) -> None:
        process_root, begun = self._process_roots.get(pid), self._clock()
        if process_root is None or process_root.root is None:
            return
        path = perf_map_path(process_root)
        try:
            fd = process_root.root.open(path, follow=False)
        except OSError:
            return
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            may_read = status.st_uid in (0, process_root.uid) and begun >= self._next_read.get(pid, begun)
            if status.st_size and may_read and version != self.versions.get(pid):
                self.versions[pid] = version
                self._read(pid, file, path, status.st_size)
                self._next_read[pid] = begun + (1 + _PAUSE_PER_READ_TIME) * (self._clock() - begun)

    def _read(self, pid: int, file: BinaryIO, path: str, size: int) -> None:
        try:
            data = _read_end(file, size)
            self._maps[pid] = PerfMap(data)
        except (OSError, MemoryError) as failure:
            why = getattr(failure, "strerror", None) or "there is not enough memory"
            self.problems[pid] = f"{path}: cannot be read: {why}"
            return
        if len(data) < size:
            self.problems[pid] = f"{path}: the first {size - len(data)} of {size} bytes were not read"


def _read_end(file: BinaryIO, size: int) -> bytes:
    """Return a file; if it has too many bytes or lines, return only whole lines at its end.

    Raises OSError or MemoryError.
    """
    at = max(0, size - _MAX_FILE_BYTES)
    file.seek(at)
    data = file.read(size - at)
    if at:
        data = data.partition(b"\n")[2]
    while data.count(b"\n") > _MAX_LINES:
        data = data[len(data) // 2 :].partition(b"\n")[2]
    return data
