"""The share of time for which all CPUs were busy, from clocks and idle times that the test sets."""

from types import SimpleNamespace

import pytest

from sfsample.process.proc_text import parse_cpu_idle
from sfsample.recording import choose_sampler
from sfsample.recording.choose_sampler import FreeCpus

HERTZ = 100


class Machine:
    """A machine that has a CPU for each idle time."""

    def __init__(self, monkeypatch) -> None:
        self.at = self.own = 100.0
        self.idle: dict[int, float] = {}
        clocks = SimpleNamespace(monotonic=lambda: self.at, thread_time=lambda: self.own)
        monkeypatch.setattr(choose_sampler, "time", clocks)
        monkeypatch.setattr(choose_sampler.os, "sched_getaffinity", lambda _: set(range(64)))
        monkeypatch.setattr(choose_sampler.os, "sysconf", lambda _: HERTZ)
        monkeypatch.setattr(choose_sampler, "read_text", lambda _: "")
        monkeypatch.setattr(
            choose_sampler, "parse_cpu_idle", lambda _: {cpu: idle * HERTZ for cpu, idle in self.idle.items()}
        )

    def busy_after(self, *idle: float, own: float = 0.05) -> float:
        """Return the share of busy time after a second in which each CPU was idle for the given part."""
        self.idle = dict.fromkeys(range(len(idle)), 0.0)
        cpus = FreeCpus()
        self.at += 1
        self.own += own
        self.idle = dict(enumerate(idle))
        return cpus.all_busy()


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.mark.parametrize("idle", [(0.0, 0.0), (0.05, 0.1), (0.3, 0.0), (0.2, 0.2)])
def test_all_cpus_are_busy_most_of_the_time(machine, idle):
    assert machine.busy_after(*idle) > 0.5


@pytest.mark.parametrize("idle", [(0.0, 0.6), (0.3, 0.3), (1.0, 0.0), (0.02,) * 64])
def test_free_cpu_lowers_the_share(machine, idle):
    assert machine.busy_after(*idle) < 0.5


def test_own_cpu_time_is_not_busy_time_of_the_least_busy_cpu(machine):
    """As at the beginning of a recording, or at a high rate."""
    assert machine.busy_after(0.0, 0.0, own=0.9) < 0.5


def test_only_cpu_is_busy_with_other_threads(machine):
    assert machine.busy_after(0.1, own=0.1) > 0.5


def test_unknown_idle_times_give_zero(machine):
    assert machine.busy_after() == 0.0


def test_idle_time_in_proc_stat_is_idle_and_iowait():
    text = "cpu  1 2 3 40 5 6 7 8 9 0\ncpu0 1 2 3 30 4 5 6 7 8 0\ncpu1 1 2 3 10 1 1 1 1 1 0\nintr 5 0\n"
    assert parse_cpu_idle(text) == {0: 34, 1: 11}
    assert parse_cpu_idle("cpu0 1 2\n") == {}
