"""Packs and unpacks the compressed parts of a history file: columns of numbers, and batches of names.

A slice is four columns of one length: the numbers of its stacks (ascending, each as the difference from the
previous number), samples, wall time and CPU time.  Numbers have 64 bits.  The lowest bytes of all numbers
come first, then the second lowest bytes, and so on, because zlib compresses runs of equal bytes best.
Times are in units of 0.1 ms.  Smaller digits are noise, and would take more than half of all bytes.

A batch of names is JSON: the frames and stacks of a slice that are not yet in the file.

Invariant: any bytes give values or raise BadInput, at a cost in proportion to their size
(tests/history/test_blobs.py).
"""

import struct
import sys
import zlib
from array import array
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, islice
from operator import sub
from typing import Any, TypeVar

from sfsample.errors import BadInput
from sfsample.report.budget import ReadingBudget
from sfsample.report.formats.profile_json import JsonValue, frames_json, read_frames, read_json
from sfsample.report.json_text import json_text
from sfsample.report.report import Numbers, Report, ReportBuilder, ReportThread
from sfsample.report.time_slices import TIME_UNIT_NS, Columns
from sfsample.symbolize.named_frame import NamedFrame

_T = TypeVar("_T", bound=Hashable)
_MAX_BLOB_BYTES = 64 << 20  # size of a blob after unpacking
_COLUMNS, _NUMBER_BYTES = 4, 8
_MEMBERS = 4  # members of a stack in a batch
_BATCH_COST = 4  # units for each byte of a batch (see report/budget.py)


def in_units(times_ns: Sequence[int]) -> list[int]:
    """Return times in units of `TIME_UNIT_NS`: add each remainder to the next element, to keep the sum."""
    sums = [total // TIME_UNIT_NS for total in accumulate(times_ns)]
    return [*map(sub, sums, [0, *sums])]


def pack_columns(columns: Columns) -> bytes:
    """Return the blob of a slice.  Raises BadInput if a number has more than 64 bits."""
    stacks, *weights = columns
    numbers = [*map(sub, stacks, [0, *stacks]), *chain(*weights)]
    try:
        data = struct.pack(f"<{len(numbers)}Q", *numbers)
    except struct.error:
        raise BadInput("a number is not in 0 to 2**64 - 1") from None
    return zlib.compress(b"".join(data[byte::_NUMBER_BYTES] for byte in range(_NUMBER_BYTES)))


def unpack_columns(blob: bytes, stacks: int, budget: ReadingBudget) -> Columns:
    """Return the columns of a slice; `stacks`: number of stacks in `ServiceNames`.  Raises BadInput."""
    data = _decompress(blob)
    budget.charge(len(data))
    count, rest = divmod(len(data), _COLUMNS * _NUMBER_BYTES)
    if rest:
        raise BadInput("damaged: a column ends too early")
    joined = bytearray(len(data))
    for byte in range(_NUMBER_BYTES):
        part = data[byte * _COLUMNS * count : (byte + 1) * _COLUMNS * count]
        if part != bytes(len(part)):  # False for most high bytes, which are 0; `joined` has the zeros already
            joined[byte::_NUMBER_BYTES] = part
    numbers = array("Q")
    numbers.frombytes(joined)  # twice as fast as `struct.unpack`
    if sys.byteorder == "big":
        numbers.byteswap()
    distances, *weights = (numbers[at * count : (at + 1) * count] for at in range(_COLUMNS))
    found = [*accumulate(distances)]
    if found and found[-1] >= stacks:
        raise BadInput("damaged: a stack is missing")
    return [found, *weights]


def pack_json(document: Mapping[str, Any]) -> bytes:
    """Return a compressed document."""
    return zlib.compress(json_text(document).encode())


def unpack_json(blob: bytes, budget: ReadingBudget) -> JsonValue:
    """Return the document that `pack_json` has compressed.  Raises BadInput."""
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


class ServiceNames:
    """The frames and stacks of one service in one file; no thread ids, as each restart changes these ids."""

    def __init__(self) -> None:
        self.frames = Numbers[NamedFrame]()
        self.stacks = Numbers[tuple[str, str, tuple[int, ...], str]]()  # process, thread, frames, stop reason
        self._packed = 0, 0  # number of frames, and number of stacks, that are in batches

    def number_stacks(self, report: Report) -> list[int]:
        """Return the number of each stack of a report."""
        threads = [thread[:2] for thread in report.threads]
        frames = [self.frames[frame] for frame in report.frames]
        return [
            self.stacks[(*threads[thread], tuple(map(frames.__getitem__, row)), reason)]
            for thread, row, reason, _ in report.stacks
        ]

    def report(self, columns: Columns, names: Sequence[str]) -> Report:
        """Return the report with these columns (stack numbers, then sums); `names`: names of the sums."""
        builder, frames, stacks = ReportBuilder(names), [*self.frames], [*self.stacks]
        number = cache(lambda at: builder.number(frames[at]))
        for stack, *sums in zip(*columns, strict=True):
            *thread, row, reason = stacks[stack]
            builder.add_row(ReportThread(*thread), map(number, row), reason, tuple(sums))
        return builder.finish()

    def pack(self) -> bytes | None:
        """Return a batch of the frames and stacks that are in no batch yet; None: all are in batches."""
        frames = [*islice(self.frames, self._packed[0], None)]
        stacks = [*islice(self.stacks, self._packed[1], None)]
        self._packed = len(self.frames), len(self.stacks)
        return pack_json({**frames_json(frames), "stacks": stacks}) if frames or stacks else None

    def unpack(self, blob: bytes, budget: ReadingBudget) -> None:
        """Add a batch.  Raises BadInput."""
        root = unpack_json(blob, budget)
        for frame in read_frames(root, budget):
            _add(self.frames, frame)
        for value in root.field("stacks").items():
            members = list(value.items())
            if len(members) != _MEMBERS:
                raise value.error(f"a list of {_MEMBERS}")
            process, thread, frames, reason = members
            row = tuple(frames.counts(len(self.frames)))
            _add(self.stacks, (process.text(), thread.text(), row, reason.text()))
        self._packed = len(self.frames), len(self.stacks)


def _add(values: Numbers[_T], value: _T) -> None:
    if value in values:  # a duplicate would change the numbers of all later frames or stacks
        raise BadInput("damaged: a frame or a stack occurs twice")
    values[value] = len(values)
