"""The compressed parts of a file: numbers of stacks as columns, names in batches.

A slice is four columns of one length: the numbers of its stacks (ascending, each as its distance to the one
before), samples, wall time and CPU time; numbers have 64 bits.  First come the lowest bytes of all numbers,
then the next ones, because zlib makes little of equal bytes.

Times are in units of 0.1 ms: the digits below are chance, and would be more than half of all bytes.

A batch of names is JSON: the frames and stacks that a slice has and that the slices before it had not.

Invariant: any bytes are values or raise BadInput, at a cost in proportion to their size
(tests/history/test_blobs.py).
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Hashable, Sequence
from functools import cache
from itertools import accumulate, chain
from operator import sub
from typing import Any, Generic, TypeVar

from sfsample.errors import BadInput
from sfsample.report.budget import Budget
from sfsample.report.formats.profile_json import JsonValue, frame_json, read_frame, read_json, read_module
from sfsample.report.json_text import json_text
from sfsample.report.report import Numbers, Report, ReportBuilder, ReportFrame, ReportThread
from sfsample.report.time_line import TIME_UNIT_NS, Columns

_T = TypeVar("_T", bound=Hashable)
_MAX_BLOB_BYTES = 64 << 20  # unpacked
_COLUMNS, _NUMBER_BYTES = 4, 8
_MEMBERS = 4  # of a stack
_BATCH_COST = 4  # for each byte of a batch (see report/budget.py): most are numbers of frames


def in_units(times_ns: Sequence[int]) -> list[int]:
    """Return times in units; what is left of one goes to the next, so that the sum stays the same."""
    sums = [total // TIME_UNIT_NS for total in accumulate(times_ns)]
    return [*map(sub, sums, [0, *sums])]


def pack_columns(columns: Columns) -> bytes:
    """Return the blob of a slice.  Raises BadInput where a number is larger than any can be."""
    stacks, *weights = columns
    numbers = [*map(sub, stacks, [0, *stacks]), *chain(*weights)]
    try:
        data = struct.pack(f"<{len(numbers)}Q", *numbers)
    except struct.error:
        raise BadInput("numbers: not all of them are in 0 to 2**64 - 1") from None
    return zlib.compress(b"".join(data[byte::_NUMBER_BYTES] for byte in range(_NUMBER_BYTES)))


def unpack_columns(blob: bytes, stacks: int, budget: Budget) -> Columns:
    """Return the columns of a slice, which refer to so many stacks.  Raises BadInput."""
    data = _decompress(blob)
    budget.charge(len(data))
    count, rest = divmod(len(data), _COLUMNS * _NUMBER_BYTES)
    if rest:
        raise BadInput("damaged: a column ends too early")
    joined = bytearray(len(data))
    for byte in range(_NUMBER_BYTES):
        part = data[byte * _COLUMNS * count : (byte + 1) * _COLUMNS * count]
        if part != bytes(len(part)):  # the high bytes of most numbers are zero
            joined[byte::_NUMBER_BYTES] = part
    numbers = array("Q")
    numbers.frombytes(joined)  # twice as fast as `struct.unpack`
    if sys.byteorder == "big":
        numbers.byteswap()
    distances, *weights = (numbers[at * count : (at + 1) * count] for at in range(_COLUMNS))
    found = [*accumulate(distances)]
    if found and found[-1] >= stacks:
        raise BadInput("damaged: it refers to a stack that there is not")
    return [found, *weights]


def pack_json(document: dict[str, Any]) -> bytes:
    """Return a compressed document."""
    return zlib.compress(json_text(document).encode())


def unpack_json(blob: bytes, budget: Budget) -> JsonValue:
    """Return a document that `pack_json` has made.  Raises BadInput."""
    data = _decompress(blob)
    budget.charge(_BATCH_COST * len(data))
    return read_json(data)


def _decompress(blob: object) -> bytes:
    if not isinstance(blob, bytes):
        raise BadInput("damaged: not a blob")
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(blob, _MAX_BLOB_BYTES)
    except zlib.error as failure:
        raise BadInput(f"damaged: {failure}") from None
    if not stream.eof or stream.unused_data:
        raise BadInput("damaged: a blob ends too early or is too large")
    return data


class Table(Generic[_T]):
    """Numbered values, each of them once."""

    def __init__(self) -> None:
        self.rows: list[_T] = []
        self._numbers: dict[_T, int] = {}
        self.packed = 0  # so many are in batches

    def number(self, row: _T) -> int:
        """Return the number of a value, which may be new."""
        at = self._numbers.setdefault(row, len(self.rows))
        if at == len(self.rows):
            self.rows.append(row)
        return at

    def add(self, row: _T) -> None:
        """Add the next value of a batch; a number is never another's, even if a file states a value twice."""
        self._numbers.setdefault(row, len(self.rows))
        self.rows.append(row)
        self.packed = len(self.rows)

    def take_new(self) -> list[_T]:
        """Return what is in no batch yet, for the next one."""
        new, self.packed = self.rows[self.packed :], len(self.rows)
        return new


class Names:
    """The frames and stacks of one service in one file.

    A stack is its process, its thread, its frames, why it ends.  Threads have no ids here: else a service
    that is restarted would have new stacks.
    """

    def __init__(self) -> None:
        self.frames: Table[ReportFrame] = Table()
        self.stacks: Table[tuple[str, str, tuple[int, ...], str]] = Table()

    def number_stacks(self, report: Report) -> list[int]:
        """Return the number of each stack of a report."""
        threads = [thread[:2] for thread in report.threads]
        frames = [self.frames.number(frame) for frame in report.frames]
        return [
            self.stacks.number((*threads[thread], tuple(map(frames.__getitem__, row)), reason))
            for thread, row, reason, _ in report.stacks
        ]

    def report(self, columns: Columns, names: Sequence[str]) -> Report:
        """Return the report of sums by stack; `names` are those of the weights."""
        builder, frames = ReportBuilder(names), self.frames.rows
        number = cache(lambda at: builder.number(frames[at]))
        for stack, *sums in zip(*columns, strict=True):
            *thread, row, reason = self.stacks.rows[stack]
            builder.add_row(ReportThread(*thread), map(number, row), reason, tuple(sums))
        return builder.finish()

    def pack(self) -> bytes | None:
        """Return a batch of all that is new since the last one; None: nothing is."""
        modules = Numbers[tuple[str, str | None]]()
        frames = [frame_json(frame, modules) for frame in self.frames.take_new()]
        stacks = self.stacks.take_new()
        if not (frames or stacks):
            return None
        return pack_json({"modules": [{"path": path, "build_id": build} for path, build in modules],
                          "frames": frames, "stacks": stacks})  # fmt: skip

    def unpack(self, blob: bytes, budget: Budget) -> None:
        """Add a batch.  Raises BadInput."""
        root = unpack_json(blob, budget)
        modules = [read_module(module) for module in root.field("modules").items()]
        for value in root.field("frames").items():
            self.frames.add(read_frame(value, modules, budget))
        for value in root.field("stacks").items():
            members = list(value.items())
            if len(members) != _MEMBERS:
                raise value.error(f"a list of {_MEMBERS}")
            process, thread, frames, reason = members
            row = tuple(frames.counts(len(self.frames.rows)))
            self.stacks.add((process.text(), thread.text(), row, reason.text()))
