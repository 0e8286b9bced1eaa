"""Descendants are sampled from their birth to their end, and those that cannot be opened are counted."""

from sfsample.core.snapshot import Capture
from sfsample.errors import NoSuchProcess, NotPermitted
from tests.recording.fake_process import PID, START, TICK, FakeProcess, record


class FakeDescendants:
    """Descendants that start at given ticks: t4=[...] before tick 4."""

    def __init__(self, **children) -> None:
        self.by_tick = {int(at[1:]): new for at, new in children.items()}
        self.calls = -1  # of `open_new`; the first is before the first tick
        self.closed = False
        self.waiting = []

    def open_new(self, *, force):  # noqa: ARG002 - the protocol
        self.calls += 1
        self.waiting += self.by_tick.get(self.calls, [])
        while self.waiting:
            yield self.waiting.pop(0)

    def close(self):
        self.closed = True


def test_descendant_is_sampled_from_birth_to_end_and_closed(process, clock):
    child = FakeProcess(clock, pid=200)
    child.ran_ns[200] = 5000  # all since its birth
    child.ends_at = START + 5.5 * TICK
    descendants = FakeDescendants(t4=[child])
    profile = record(process, descendants=descendants)

    assert child.ticks() == [3, 4, 5]
    wall = sum(total.wall_ns for key, total in profile.totals.items() if key.process_key == 200)
    assert wall == 3 * TICK * 1e9  # since the tick before the first sample
    assert sum(total.cpu_ns for key, total in profile.totals.items() if key.process_key == 200) == 5000
    assert child.closed
    assert descendants.closed
    assert profile.stats.subprocesses.watched == 1
    assert profile.stats.ticks == 8


def test_known_processes_are_sampled_before_many_new_ones(process, clock, monkeypatch):
    monkeypatch.setattr("sfsample.recording.ptrace_sampler._OPEN_FIRST_S", 0)
    monkeypatch.setattr("sfsample.recording.ptrace_sampler._OPEN_LATER_S", 0)  # one at a time
    children = [FakeProcess(clock, pid=200 + number) for number in range(12)]
    profile = record(process, descendants=FakeDescendants(t0=children))

    assert process.ticks() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [child.ticks()[0] for child in children[:9]] == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert profile.stats.subprocesses.watched == 9
    assert profile.stats.problems == {"subprocess not recorded: the recording ended before its turn": 3}


def test_living_descendant_is_closed_and_does_not_prolong_the_recording(process, clock):
    child = FakeProcess(clock, pid=200)
    process.ends_at = START + 2.5 * TICK
    profile = record(process, descendants=FakeDescendants(t0=[child]), duration=None)

    assert profile.stats.ended_by == "target"
    assert {key.process_key for key in profile.counts} == {PID, 200}
    assert child.closed


def test_descendants_that_cannot_be_opened_are_counted(process, clock):
    child = FakeProcess(clock, pid=200)
    child.answers[200] = NotPermitted(200, "not permitted to trace: 200", "why")
    children = [NoSuchProcess(201, "no such process: 201"), NotPermitted(202, "not permitted: 202"), child]
    stats = record(process, descendants=FakeDescendants(t0=children)).stats

    assert vars(stats.subprocesses) == {"watched": 1, "short_lived": 1, "refused": 1}
    assert stats.problems == {
        "subprocess not recorded: not permitted: 202": 1,
        "not captured: not permitted to trace: 200 (why)": 8,
    }
    assert (stats.samples, stats.captures[Capture.FAILED]) == (8, 8)


def test_descendant_without_samples_is_forgotten(process, clock):
    child = FakeProcess(clock, (200, "S"), pid=200)
    profile = record(process, descendants=FakeDescendants(t0=[child]))

    assert profile.roots.keys() == profile.processes.keys() == {PID}
