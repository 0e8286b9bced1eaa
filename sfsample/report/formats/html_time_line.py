"""Encodes the time line of the html page: the samples and times of each stack in each slice of time.

A stack has a row number.  A slice is a string of letters: the row numbers (each as the difference from the
previous row number), then samples, then times.  A number has digits of five bits, the lowest first; a sixth
bit says that another digit follows.  Times are in units of 10 ms.  The remainder of a row's time is added to
the row's time in the next slice, so a sum over several slices is wrong by less than 10 ms.

If the page would have more than 10 MB, neighbouring slices are joined (scripts/bench/page PAGE.html).
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import sub
from typing import Any

from sfsample.recording.stats import coverage_of
from sfsample.report.report import WEIGHTS
from sfsample.report.time_slices import TIME_UNIT_NS, TimeSlice, TimeSlices, join_slices
from sfsample.symbolize.named_frame import clean_name

_MAX_ENTRIES = 1_500_000  # rows of all slices, each of about four letters
_UNIT_NS = 10_000_000
_PER_UNIT = _UNIT_NS // TIME_UNIT_NS
_ZERO, _BASE = ord("?"), 32  # the letter for digit 0, and the number of digits


class NumberWords(dict[int, str]):
    """The letters of each number; `numberReader` in page/numbers.js reads them."""

    def __missing__(self, number: int) -> str:
        word, rest = "", number
        while rest >= _BASE:
            word += chr(_ZERO + _BASE + rest % _BASE)
            rest //= _BASE
        self[number] = word = word + chr(_ZERO + rest)
        return word

    def text(self, numbers: Iterable[int]) -> str:
        """Return the letters of several numbers."""
        return "".join(map(self.__getitem__, numbers))


def slices_data(line: TimeSlices, rows: Sequence[int], weights: Sequence[str]) -> dict[str, Any]:
    """Return the data of the time line; `rows`: row of each stack; `weights`: weights on the page."""
    count = max(rows, default=-1) + 1
    slices, together = [], 1
    for each in line.slices:  # several stacks may have the same row
        stacks, *columns = each.columns
        by_row = each._replace(columns=[[rows[stack] for stack in stacks], *columns])
        slices.append(join_slices([by_row], count))
    while len(slices) > 1 and sum(len(each.columns[0]) for each in slices) > _MAX_ENTRIES:
        slices = [join_slices(slices[at : at + 2], count) for at in range(0, len(slices), 2)]
        together *= 2
    kept = [WEIGHTS.index(name) for name in weights]
    scales = [1, TIME_UNIT_NS, TIME_UNIT_NS]
    return {
        "begin": [each.begin_s for each in slices],
        "end": [each.end_s for each in slices],
        "coverage": [coverage_of(each.cpu_sampled_ns, each.cpu_charged_ns) for each in slices],
        "sums": [[sum(each.columns[1 + at]) * scales[at] for each in slices] for at in kept],
        "counts": [len(each.columns[0]) for each in slices],
        "letters": _letters(slices, kept, count),
        "cpu_ms": [each.cpu_ms or None for each in slices],
        "unit_ns": _UNIT_NS,
        "together": together,
        "gaps": [[begin_s, end_s, clean_name(why)] for begin_s, end_s, why in line.gaps],
    }  # fmt: skip


def _letters(slices: Sequence[TimeSlice], kept: Sequence[int], count: int) -> list[str]:
    words, found = NumberWords(), []
    rests = [[0] * count for _ in WEIGHTS]  # remainder of each row, less than a unit
    for each in slices:
        numbers = each.columns[0]
        columns = [map(sub, numbers, [0, *numbers]),
                   *(_in_units(numbers, each.columns[1 + at], rests[at]) if at else each.columns[1]
                     for at in kept)]  # fmt: skip
        found.append(words.text(chain(*columns)))
    return found


def _in_units(rows: Sequence[int], times: Sequence[int], rests: list[int]) -> list[int]:
    found = []
    for row, time in zip(rows, times, strict=True):
        units, rests[row] = divmod(rests[row] + time, _PER_UNIT)
        found.append(units)
    return found
