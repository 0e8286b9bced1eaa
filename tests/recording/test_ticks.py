"""Each interval has one tick, at a random instant of it."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.recording.ticks import Schedule, uniform


@given(st.lists(st.floats(0, 0.999), min_size=1, max_size=50))
def test_every_interval_has_one_tick(offsets):
    random_offsets = iter(offsets)
    schedule = Schedule(100.0, 8.0, len(offsets) / 8, lambda: next(random_offsets))
    for number, offset in enumerate(offsets):
        due = schedule.next()
        assert due == 100 + (number + offset) / 8
        assert schedule.take(due) == 0
    assert schedule.over
    assert schedule.end == 100 + len(offsets) / 8


def test_tick_can_be_taken_until_its_interval_is_over():
    schedule = Schedule(0.0, 8.0, None, lambda: 0.0)

    assert schedule.take(0.124) == 0
    assert schedule.take(0.249) == 0
    assert schedule.ticks == 2


def test_ticks_whose_interval_is_over_are_missed_and_never_made_up():
    schedule = Schedule(0.0, 8.0, None, lambda: 0.0)
    schedule.take(0.0)

    assert schedule.take(0.5) == 3  # those of 0.125, 0.25 and 0.375
    assert schedule.ticks == 4
    assert schedule.next() == 0.5


def test_missed_ticks_do_not_exceed_the_ticks_of_the_duration():
    schedule = Schedule(0.0, 8.0, 0.5, lambda: 0.0)
    schedule.take(0.0)

    assert schedule.take(100.0) == 3
    assert schedule.over


@given(st.floats(0.001, 10), st.floats(0.01, 100), st.floats(0, 0.999))
def test_no_tick_comes_after_the_end(duration, rate, random_number):
    schedule = Schedule(0.0, rate, duration, lambda: random_number)
    while not schedule.over:
        due = schedule.next()
        assert due <= schedule.end
        schedule.take(due)
    assert schedule.end == pytest.approx(duration)


def test_random_numbers_are_uniform():
    drawn = [uniform() for _ in range(4000)]

    assert all(0 <= value < 1 for value in drawn)
    for low in (0.0, 0.25, 0.5, 0.75):  # 1000 expected, 27 the standard deviation
        assert 800 < sum(low <= value < low + 0.25 for value in drawn) < 1200


def test_skip_leaves_out_ticks():
    schedule = Schedule(0.0, 8.0, 1.0, lambda: 0.0)
    schedule.take(0.0)

    assert schedule.skip(0.05) == 0
    assert schedule.skip(0.5) == 3
    assert schedule.next() == 0.5
    assert schedule.skip(100.0) == 4
    assert schedule.over


@given(st.lists(st.floats(1, 9), min_size=1, max_size=20), st.floats(0, 0.999))
def test_stretched_interval_has_one_tick(stretches, offset):
    schedule = Schedule(0.0, 8.0, None, lambda: offset)
    for number, stretch in enumerate(stretches):
        schedule.stretch = stretch
        due = schedule.next()
        assert due * 8 == pytest.approx(sum(stretches[:number]) + offset * max(1, stretch / 2))
        assert schedule.take(due) == 0
    assert schedule.ticks == pytest.approx(sum(stretches), abs=1)


def test_stretched_intervals_fill_the_duration():
    schedule = Schedule(0.0, 8.0, 1.0, lambda: 0.5)
    schedule.stretch = 3.0
    for due in (0.75, 3.75, 6.75):
        assert schedule.next() * 8 == due
        assert schedule.take(schedule.next()) == 0
    assert schedule.over
    assert schedule.ticks == 8


_DRAW = """
import ctypes, os
from sfsample.recording.ticks import uniform
ctypes.CDLL(None, use_errno=True).prctl(22, 1, 0, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_STRICT
for _ in range(2000):
    uniform()
os.write(1, b"drawn")
"""


def test_random_number_makes_no_system_call():
    """In strict mode any system call but read and write kills the process."""
    done = subprocess.run([sys.executable, "-c", _DRAW], capture_output=True, check=False)
    assert done.stdout == b"drawn", done.stderr
