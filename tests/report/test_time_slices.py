"""The time line of the page: letters are the numbers that they were, and what is joined adds up."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.report.formats import html_time_line
from sfsample.report.formats.html import page_data
from sfsample.report.formats.html_time_line import slices_data
from sfsample.report.merge import merge
from sfsample.report.report import CPU, SAMPLES, WALL, WEIGHTS
from sfsample.report.time_slices import TIME_UNIT_NS, TimeSlice, TimeSlices, renumber
from tests.builders.histories import report

ROWS = [0, 1, 1, 2]  # two stacks are one row of the page
numbers = st.integers(0, 5000)
columns = st.dictionaries(st.integers(0, 3), st.tuples(numbers, numbers, numbers), max_size=4)
lines = st.lists(columns, min_size=1, max_size=6)


def slices_of(found: list[dict[int, tuple[int, int, int]]]) -> list[TimeSlice]:
    return [
        TimeSlice(60.0 * at, 60.0 * at + 60, 4, 3,
                  [list(each), *([weights[n] for weights in each.values()] for n in range(3))])
        for at, each in enumerate(found)
    ]  # fmt: skip


def read(letters: str, count: int, weights: int) -> list[list[int]]:
    """Return the columns of a slice, as the page reads them."""
    found, value, place = [], 0, 0
    for letter in letters:
        digit = ord(letter) - ord("?")
        value, place = value + (digit % 32 << place), place + 5
        if digit < 32:
            found.append(value)
            value = place = 0
    assert len(found) == count * (1 + weights)
    parts = [found[at : at + count] for at in range(0, len(found), count)] if count else [[]] * (1 + weights)
    return [[*accumulate(parts[0])], *parts[1:]]


@pytest.mark.parametrize("most", [1, 3, 1000])
@given(found=lines)
def test_sums_of_rows_are_those_of_the_slices(most, found):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(html_time_line, "_MAX_ENTRIES", most)
        data = slices_data(TimeSlices(slices_of(found)), ROWS, WEIGHTS)
    read_slices = [read(text, count, 3) for text, count in zip(data["letters"], data["counts"], strict=True)]
    assert sum(data["counts"]) <= most or len(read_slices) == 1
    assert len(read_slices) == -(-len(found) // data["together"])
    for row in range(3):
        exact = [sum(each[stack][at] for each in found for stack in each if ROWS[stack] == row)
                 for at in range(3)]  # fmt: skip
        sums = [sum(dict(zip(rows, weights[at], strict=True)).get(row, 0) for rows, *weights in read_slices)
                for at in range(3)]  # fmt: skip
        assert sums[0] == exact[0]
        for units, time in zip(sums[1:], exact[1:], strict=True):
            assert 0 <= time * TIME_UNIT_NS - units * data["unit_ns"] < data["unit_ns"]
    assert sum(data["sums"][1]) == TIME_UNIT_NS * sum(each[n][1] for each in found for n in each)


def test_page_has_only_the_weights_of_its_report():
    data = slices_data(TimeSlices(slices_of([{0: (3, 700, 250)}])), ROWS, (SAMPLES, CPU))
    assert read(data["letters"][0], 1, 2) == [[0], [3], [2]]
    assert data["sums"] == [[3], [25_000_000]]
    assert data["coverage"] == [0.75]


def test_slices_of_several_reports_refer_to_the_merged_one():
    parts = [
        report(("main;a", 1, 10, 1), ("main;b", 2, 20, 2)),
        report(("main;c", 4, 40, 4), ("main;a", 8, 80, 8)),
    ]
    slices = [TimeSlice(at, at + 1, 0, 0, [[0, 1], *(each.column(name) for name in WEIGHTS)])
              for at, each in enumerate(parts)]  # fmt: skip
    merged = merge(parts)
    found = renumber((part, [each]) for part, each in zip(parts, slices, strict=True))
    for name, at in ((SAMPLES, 1), (WALL, 2), (CPU, 3)):
        sums = [0] * len(merged.stacks)
        for each in found:
            for stack, weight in zip(each.columns[0], each.columns[at], strict=True):
                sums[stack] += weight
        assert sums == merged.column(name)


def test_page_without_slices_has_no_time_line():
    whole = report(("main;a", 1, 10, 1))
    assert page_data(whole, threads=False)["slices"] is None
