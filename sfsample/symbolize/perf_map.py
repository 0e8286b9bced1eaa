"""Names of code that a target has generated: /tmp/perf-PID.map, in the target's own root and by its own pid.

Law: believed only if the target's user or root owns it, as perf does, and if it is a regular file.  Text from
it is cleaned by whoever shows it.  Of several functions that cover an address, the one written last is meant:
a JIT uses memory again.  So of a file that is too large its end is read, and that is told.  Read once; read
again when an address is not found and the file has grown or changed, but never for most of the time.

Source: Linux, tools/perf/Documentation/jit-interface.txt: lines `START SIZE NAME`, both in hexadecimal.
"""

import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import BinaryIO, NamedTuple

from sfsample.core.filesystem import ProcessRoot

_MOST_BYTES = 128 << 20
_MOST_OUTER = 256  # starts to walk back over in search of a function that reaches further
_END = 1 << 64
_REST = 10  # times as long as it took to read a file it is not read again
_LONGEST_NAME = 10_000
_LONGEST_NUMBER = 18  # 0x and 16 digits


class Generated(NamedTuple):
    """A function that a JIT has written down."""

    name: str
    start: int
    size: int


class PerfMap:
    """The lines of one file, by address."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        starts, ends, names = _columns(data)
        order = sorted(range(len(starts)), key=starts.__getitem__)
        self._starts = array("Q", map(starts.__getitem__, order))
        self._ends = array("Q", map(ends.__getitem__, order))
        self._names = array("Q", map(names.__getitem__, order))  # where they are in the data
        self._reach = array("Q", accumulate(self._ends, max))

    def find(self, address: int) -> Generated | None:
        """Return the function that was written last of those that cover an address."""
        last = bisect_right(self._starts, address) - 1 if 0 <= address < _END else -1
        latest, found = -1, -1
        for at in range(last, max(-1, last - _MOST_OUTER), -1):
            if self._reach[at] <= address:
                break
            if self._ends[at] > address and self._names[at] > latest:
                latest, found = self._names[at], at
        if found < 0:
            return None
        start = self._starts[found]
        return Generated(self._name(latest), start, self._ends[found] - start)

    def _name(self, at: int) -> str:
        line = self._data[at : at + _LONGEST_NAME].partition(b"\n")[0]
        return line.decode("utf-8", "replace").rstrip("\r")


def _columns(data: bytes) -> "tuple[array[int], array[int], array[int]]":
    """Return start, end and where the name begins of every line that can be read."""
    starts, ends, names = array("Q"), array("Q"), array("Q")
    at = 0
    while (end := data.find(b"\n", at)) >= 0:  # the last line may not be whole yet
        words = data[at:end].split(b" ", 2)
        low, size = map(_hexadecimal, words[:2]) if len(words) == 3 and words[2].strip() else (0, 0)
        if 0 < size < _END - low:
            starts.append(low)
            ends.append(low + size)
            names.append(end - len(words[2]))
        at = end + 1
    return starts, ends, names


def _hexadecimal(word: bytes) -> int:
    try:
        return max(0, int(word, 16)) if len(word) <= _LONGEST_NUMBER else 0
    except ValueError:
        return 0


def path_of(home: ProcessRoot) -> str:
    """Return where a process writes its map, as it sees it."""
    return f"/tmp/perf-{home.pid}.map"  # noqa: S108 - that is where it is


class PerfMaps:
    """The files of several processes."""

    def __init__(self, homes: Mapping[int, ProcessRoot], clock: Callable[[], float] = time.monotonic) -> None:
        self._homes, self._clock = homes, clock
        self._maps: dict[int, tuple[tuple[int, ...], PerfMap | None]] = {}
        self._not_before: dict[int, float] = {}
        self._cut: dict[int, str] = {}

    @property
    def problems(self) -> list[str]:
        """What was not read."""
        return list(self._cut.values())

    def find(self, pid: int, address: int) -> Generated | None:
        """Return the generated function of process `pid` at an address."""
        known = self._maps.get(pid)
        found = known[1].find(address) if known and known[1] else None
        if found is None:
            self._refresh(pid)
            table = self._maps[pid][1]
            found = table.find(address) if table else None
        return found

    def has(self, pid: int) -> bool:
        """Whether there is a file for a process that was looked for."""
        return self._maps.get(pid, (None, None))[1] is not None

    def _refresh(self, pid: int) -> None:
        """Read the file of a process if it has changed since it was read."""
        before, _ = self._maps.setdefault(pid, ((), None))
        home, begun = self._homes.get(pid), self._clock()
        fd = home.root.open(path_of(home), follow=False) if home and home.root else None
        if fd is None or home is None:
            return
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            version = (status.st_ino, status.st_size, status.st_mtime_ns)
            may = status.st_uid in (0, home.uid) and begun >= self._not_before.get(pid, begun)
            if may and version != before:
                data, left_out = _end_of(file, status.st_size)
                self._maps[pid] = (version, PerfMap(data))
                self._not_before[pid] = begun + (1 + _REST) * (self._clock() - begun)
                if left_out:
                    sizes = f"the first {left_out} of {status.st_size} bytes were not read"
                    self._cut[pid] = (
                        f"process {pid}: {path_of(home)}: {sizes}, only the last {_MOST_BYTES >> 20} MiB"
                    )


def _end_of(file: BinaryIO, size: int) -> tuple[bytes, int]:
    """Return a file, or the whole lines at its end, and how many bytes come before them."""
    at = max(0, size - _MOST_BYTES)
    file.seek(at)
    left_out = at + len(file.readline(_MOST_BYTES)) if at else 0
    return file.read(_MOST_BYTES), left_out
