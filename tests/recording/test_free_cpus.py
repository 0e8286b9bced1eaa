"""When no processor is free for us, by what the kernel counts; the clocks are the test's."""

from types import SimpleNamespace

import pytest

from sfsample.recording import free_cpus as spare
from sfsample.recording.free_cpus import FreeCpus

QUARTER = 0.25


class Machine:
    """Of two processors, unless more are idle; tells time, and who has used it."""

    def __init__(self, monkeypatch) -> None:
        self.at = self.ours = 100.0
        self.idle = {}
        self.reads = 0
        clocks = SimpleNamespace(monotonic=lambda: self.at, thread_time=lambda: self.ours)
        monkeypatch.setattr(spare, "time", clocks)
        monkeypatch.setattr(FreeCpus, "_idle", lambda _: self._read())

    def _read(self):
        self.reads += 1
        return dict(self.idle)

    def passes(self, seconds=QUARTER, *, idle=(0.0, 0.0), ours=0.05):
        self.at += seconds
        self.idle = {one: self.idle.get(one, 0.0) + seconds * share for one, share in enumerate(idle)}
        self.ours += seconds * ours


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def lacking(machine, *quarters):
    """What is said after each of them."""
    asked, said = FreeCpus(), []
    machine.passes(**quarters[0])
    asked.lacks()
    for quarter in quarters:
        machine.passes(**quarter)
        said.append(asked.lacks())
    return said


def test_no_processor_was_free_twice(machine):
    assert lacking(machine, {}, {}, {}) == [False, True, True]


@pytest.mark.parametrize("idle", [(0.05, 0.1), (0.3, 0.0), (0.2, 0.2)])
def test_more_often_than_not_is_enough(machine, idle):
    assert lacking(machine, *[{"idle": idle}] * 2) == [False, True]


@pytest.mark.parametrize("idle", [(0.0, 0.6), (0.3, 0.3), (1.0, 0.0), (0.02,) * 64])
def test_one_was_free_for_a_while(machine, idle):
    assert lacking(machine, *[{"idle": idle}] * 3) == [False] * 3


def test_it_begins_anew_when_one_was(machine):
    assert lacking(machine, {}, {"idle": (0, 1)}, {}, {}) == [False, False, False, True]


def test_what_we_use_ourselves_is_taken_from_nobody_where_one_is_free(machine):
    """As when we begin, or at a high rate."""
    assert lacking(machine, *[{"ours": 0.9}] * 3) == [False] * 3


def test_of_one_processor_all_is_taken_from_somebody(machine):
    assert lacking(machine, *[{"idle": (0.1,), "ours": 0.1}] * 2) == [False, True]


def test_asked_often_it_looks_seldom(machine):
    asked = FreeCpus()
    machine.passes()
    for _ in range(100):
        asked.lacks()
        machine.passes(QUARTER / 10)
    assert machine.reads == 10
    assert asked.lacks()


def test_what_is_not_told_is_no_reason(machine):
    assert lacking(machine, *[{"idle": ()}] * 3) == [False] * 3
