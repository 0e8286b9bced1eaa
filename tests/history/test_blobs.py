"""Blobs: what was packed is unpacked, and any other bytes are BadInput."""

import zlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.errors import BadInput
from sfsample.history.blobs import (
    ServiceNames,
    in_units,
    pack_columns,
    pack_json,
    unpack_columns,
)
from sfsample.report.budget import ReadingBudget
from sfsample.report.time_slices import TIME_UNIT_NS, add_columns
from tests.builders.reports import full

numbers = st.integers(0, 2**64 - 1) | st.integers(0, 300)
all_rows = st.dictionaries(st.integers(0, 100_000), st.tuples(numbers, numbers, numbers), max_size=50)


@given(all_rows)
def test_rows_survive(rows):
    expected = sorted((stack, *weights) for stack, weights in rows.items())
    columns = [[row[at] for row in expected] for at in range(4)]
    unpacked = unpack_columns(pack_columns(columns), 100_001, ReadingBudget(0))
    assert list(zip(*unpacked, strict=True)) == expected


@given(st.lists(st.integers(0, 10**12), max_size=20))
def test_rounding_moves_no_time_by_more_than_a_unit_and_not_their_sum(times_ns):
    units = in_units(times_ns)
    assert sum(units) == sum(times_ns) // TIME_UNIT_NS
    assert all(abs(unit - ns / TIME_UNIT_NS) < 1 for unit, ns in zip(units, times_ns, strict=True))
    assert in_units([unit * TIME_UNIT_NS for unit in units]) == units


@given(st.lists(all_rows, max_size=5))
def test_columns_add_up_as_counters_do(slices):
    expected = Counter[tuple[int, int]]()
    for rows in slices:
        for stack, weights in rows.items():
            for at, weight in enumerate(weights):
                expected[stack, at] += weight
    columns = [(list(rows), *([weights[at] for weights in rows.values()] for at in range(3)))
               for rows in slices]  # fmt: skip
    numbers, *weights = add_columns(columns, 100_001)
    assert numbers == sorted({stack for rows in slices for stack in rows})
    found = {(stack, at): column[place] for at, column in enumerate(weights)
             for place, stack in enumerate(numbers)}  # fmt: skip
    assert found == expected


@pytest.mark.parametrize("number", [-1, 2**64])
def test_number_that_no_column_holds_is_refused(number):
    with pytest.raises(BadInput, match="a number is not in 0"):
        pack_columns([[0], [1], [number], [2]])


@given(st.binary(max_size=60))
def test_any_bytes_are_columns_or_bad_input(data):
    for blob in (data, zlib.compress(data)):
        try:
            columns = unpack_columns(blob, 10, ReadingBudget(0))
        except BadInput:
            continue
        assert len({len(column) for column in columns}) == 1
        assert max(columns[0], default=0) < 10


def test_stack_that_there_is_not_is_refused():
    with pytest.raises(BadInput, match="a stack is missing"):
        unpack_columns(pack_columns([[0, 5], *[[1, 1]] * 3]), 5, ReadingBudget(0))


def test_blob_that_unpacks_to_gigabytes_is_refused():
    stream = zlib.compressobj()
    blob = b"".join(stream.compress(bytes(1 << 20)) for _ in range(200)) + stream.flush()
    with pytest.raises(BadInput, match="too large"):
        unpack_columns(blob, 10, ReadingBudget(0))


def test_names_survive_in_batches():
    first, report = ServiceNames(), full()
    numbers = first.number_stacks(report._replace(stacks=report.stacks[:2]))
    batches = [first.pack()]
    assert first.number_stacks(report)[:2] == numbers
    batches.append(first.pack())
    assert first.pack() is None
    again = ServiceNames()
    for batch in batches:
        assert batch is not None
        again.unpack(batch, ReadingBudget(0))
    assert again.frames == first.frames
    assert again.stacks == first.stacks
    assert {stack[:2] for stack in again.stacks} == {("app", "app"), ("app", "worker")}
    assert again.pack() is None


NAMES = {"modules": [], "frames": [], "stacks": [["p", "t", [], "outermost"]]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("stacks", [["p", "t", [1], "outermost"]]),  # a frame that there is not
        ("stacks", [[1, "t", [], "outermost"]]),
        ("stacks", [["p", "t", []]]),
        ("stacks", {}),
        ("stacks", [["p", "t", [True], "outermost"]]),
        ("frames", [{}]),
        ("modules", [7]),
    ],
)
def test_damaged_batch_is_bad_input(key, value):
    ServiceNames().unpack(pack_json(NAMES), ReadingBudget(0))
    with pytest.raises(BadInput):
        ServiceNames().unpack(pack_json({**NAMES, key: value}), ReadingBudget(0))


def test_value_that_a_batch_states_twice_moves_no_number():
    stacks = [["p", thread, [], "outermost"] for thread in ("t", "t", "u")]
    with pytest.raises(BadInput, match="twice"):
        ServiceNames().unpack(pack_json({**NAMES, "stacks": stacks}), ReadingBudget(0))
