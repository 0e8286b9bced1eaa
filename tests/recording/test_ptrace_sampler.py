"""The sampler takes its ticks on schedule and ends in time, on a clock that the test sets."""

from itertools import cycle, pairwise
from math import inf

import pytest

from sfsample.core.checkpoint import PENDING_STOPS, checkpoint
from sfsample.core.snapshot import Capture, SchedulerEvidence
from sfsample.errors import NoSuchProcess, NotPermitted
from sfsample.recording import process_sampler, ptrace_sampler
from sfsample.recording.sample import TickTime
from tests.recording.fake_process import (
    PID,
    START,
    TICK,
    FakeProcess,
    record,
    sampler_of,
    stopped,
)


def test_tick_k_is_at_start_plus_k_divided_by_the_rate(process):
    stats = record(process).stats

    assert process.ticks() == list(range(8))
    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 0, 8)
    assert stats.duration_s == 1.0  # the interval of the last tick is part of it
    assert stats.ended_by == "duration"


def test_cost_of_a_sample_does_not_move_the_schedule(process):
    process.costs = {1: 0.3 * TICK, 2: 0.9 * TICK, 5: 0.5 * TICK}
    stats = record(process).stats

    assert process.ticks() == list(range(8))
    assert stats.late_ticks == 0


def test_late_tick_is_taken_within_its_interval(process):
    process.costs = {1: 1.5 * TICK}
    stats = record(process).stats

    assert process.ticks() == [0, 1.5, 2, 3, 4, 5, 6, 7]
    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 0, 8)


def test_missed_ticks_are_counted_and_never_made_up(process):
    process.costs = {2: 3.25 * TICK}
    stats = record(process).stats

    assert process.ticks() == [0, 1, 4.25, 5, 6, 7]  # 2 and 3 were missed
    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 2, 6)


def test_missed_ticks_at_the_end_do_not_exceed_due_ticks(process):
    process.costs = {7: 4 * TICK}
    stats = record(process).stats

    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 1, 7)


def test_jitter_moves_a_tick_within_its_interval(process):
    record(process, jitter=lambda: 0.5)

    assert process.ticks() == [k + 0.5 for k in range(8)]


def test_missed_ticks_are_reported_once_a_second(process):
    process.costs = dict.fromkeys(range(1, 100), 3.5 * TICK)
    messages = []
    stats = record(process, duration=4.0, tell=messages.append).stats

    assert stats.late_ticks > 10
    assert 2 <= len(messages) <= 5
    assert all("ticks missed" in line for line in messages)


class FakePriority:
    """Real-time priority with which a sampler uses a share of a CPU."""

    is_allowed = True

    def __init__(self, clock, share: float) -> None:
        self.clock, self.share = clock, share
        self.is_raised, self.raised_s = False, 0.0

    def during_ticks(self, *, is_wanted: bool) -> None:
        self.is_raised = is_wanted

    def used_s(self) -> float:
        return self.share * self.raised_s

    def sleep(self, seconds: float) -> None:
        self.clock.time += seconds
        self.raised_s += seconds * self.is_raised


@pytest.mark.parametrize(("share", "raised"), [(0.1, 1.0), (0.4, 0.5), (2.0, 0.1)])
def test_real_time_priority_is_kept_up_to_a_fifth_of_a_cpu(process, monkeypatch, share, raised):
    priority = FakePriority(process.clock, share)
    monkeypatch.setattr(ptrace_sampler, "REAL_TIME_PRIORITY", priority)
    monkeypatch.setattr(process.clock, "sleep", priority.sleep)
    record(process, duration=100.0)

    assert priority.raised_s / 100 == pytest.approx(raised, abs=0.05)
    assert not priority.is_raised


@pytest.mark.parametrize(("duration", "ticks"), [(0.5, 4), (0.01, 1), (2.0, 16), (1.05, 8)])
def test_duration_sets_the_number_of_ticks(process, duration, ticks):
    stats = record(process, duration=duration).stats

    assert (stats.ticks, len(process.captured)) == (ticks, ticks)
    assert stats.duration_s == pytest.approx(duration)


def test_should_stop_ends_the_recording(process):
    stats = record(process, duration=None, should_stop=lambda: len(process.captured) >= 3).stats

    assert (stats.ended_by, stats.samples) == ("signal", 3)


def test_should_stop_is_called_ten_times_a_second(clock, process):
    stats = record(process, rate=0.125, duration=None, should_stop=lambda: clock.now() >= START + 1).stats

    assert stats.samples == 1
    assert max(clock.slept) <= 0.1
    assert clock.now() < START + 1.11


def test_should_stop_before_the_first_tick_takes_no_sample(process):
    stats = record(process, should_stop=lambda: True).stats

    assert (stats.ended_by, stats.ticks, stats.samples) == ("signal", 0, 0)


def test_should_stop_after_the_last_tick_ends_the_recording(process):
    stats = record(process, should_stop=lambda: len(process.captured) == 8).stats

    assert (stats.ended_by, stats.samples) == ("signal", 8)


@pytest.mark.parametrize("ends", ["duration", "signal"])
@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_tick_over_many_threads_ends_with_the_recording(clock, monkeypatch, mode, ends):
    monkeypatch.setattr(process_sampler, "_COLLECT_NS", 0)
    process = FakeProcess(clock, *[(tid, "R") for tid in range(100, 110)])
    process.costs = dict.fromkeys(range(1, 11), 0.3 * TICK)
    should_stop = {"duration": lambda: False, "signal": lambda: len(process.captured) == 4}[ends]
    duration = TICK if ends == "duration" else None
    stats = record(process, mode=mode, duration=duration, should_stop=should_stop).stats

    assert [tid for tid, _ in process.captured] == [100, 101, 102, 103]
    assert (stats.ended_by, stats.samples) == (ends, 4)
    assert stats.captures[Capture.FAILED] == (6 if mode == "wall" else 0)
    assert dict(stats.problems) == (
        {"not captured: the recording ended before its turn": 6} if mode == "wall" else {})  # fmt: skip


# -- targets that end


def test_recording_ends_with_its_target(process):
    process.ends_at = START + 2.5 * TICK
    stats = record(process, duration=None).stats

    assert (stats.ended_by, stats.samples) == ("target", 3)
    assert stats.as_json()["modules"] == 1


def test_target_that_ended_before_a_refresh_of_its_maps_keeps_its_modules(process):
    process.ends_at = START + 2 * 4.0
    stats = record(process, rate=0.25, duration=None).stats

    assert stats.ended_by == "target"
    assert stats.as_json()["modules"] == 1


def test_recording_goes_on_while_another_target_lives(clock, process):
    other = FakeProcess(clock, pid=200)
    process.ends_at = START + 2.5 * TICK
    stats = record(process, other).stats

    assert (stats.ended_by, len(process.captured), len(other.captured)) == ("duration", 3, 8)


# -- the end of a recording


def test_endless_work_on_the_first_stack_ends_with_the_recording(process, clock, monkeypatch):
    def analyse(*_):
        for _ in range(1_000_000):
            clock.time += 0.001
            checkpoint()

    monkeypatch.setattr(PENDING_STOPS, "_collected_ns", -inf)
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    monkeypatch.setattr(process, "capture", analyse)
    stats = record(process).stats

    assert stats.ended_by == "duration"
    assert 1.4 <= stats.duration_s < 1.5


# -- limit of overhead


def test_ticks_are_skipped_above_max_overhead(process):
    process.answers[PID] = stopped(stop_ns=round(TICK * 1e9))
    stats = record(process, max_overhead=0.5, duration=10.0).stats

    assert stats.spared_ticks + stats.samples == stats.ticks == 80
    overspent_s = 8 * TICK  # at the end the intervals are twice as long: by an eighth of this time
    assert stats.pauses.total / 1e9 <= 0.5 * (10.0 + overspent_s) + TICK
    assert stats.samples >= 30


@pytest.mark.usefixtures("no_own_time")
def test_ticks_stay_evenly_spaced_above_max_overhead(process, monkeypatch):
    """A tick with a high cost does not delay the next one alone: the cost changes from tick to tick."""
    capture, costs_ns = process.capture, cycle((20_000_000, 180_000_000, 50_000_000))
    monkeypatch.setattr(process, "capture", lambda *_: capture(*_)._replace(stop_ns=next(costs_ns)))
    stats = record(process, mode="wall", max_overhead=0.2, duration=60.0).stats

    gaps = [later - earlier for earlier, later in pairwise(process.ticks()[20:])]
    assert max(gaps) < 1.5 * min(gaps)
    assert stats.achieved_hz == pytest.approx(0.2 / (0.25 / 3), rel=0.1)
    assert stats.spared_ticks + stats.samples == stats.ticks == 480


@pytest.fixture
def no_own_time(monkeypatch):
    """Have sfsample seem to use no CPU time: only pauses are overhead."""
    monkeypatch.setattr("time.thread_time", lambda: 0.0)


@pytest.mark.usefixtures("no_own_time")
@pytest.mark.parametrize(
    ("waited_ns", "bounds_ns", "held_ns", "skips"),
    [
        (60_900_000, (40_000, 61_000_000), 100_000, False),
        (0, (40_000, 61_000_000), 61_000_000, True),
        (62_000_000, (40_000, 61_000_000), 40_000, False),  # part of the wait was before the request
        (0, (40_000, 90_000), 90_000, False),  # it was seen to run 90 us before its stop was seen
    ],
)
def test_wait_for_a_cpu_is_no_overhead(process, waited_ns, bounds_ns, held_ns, skips):
    """Each pause takes 61 ms, most of which may be the thread's own wait for a CPU."""
    evidence = SchedulerEvidence(b"5 7 1", b"6 %d 2" % (7 + waited_ns), held_ns=bounds_ns)
    process.answers[PID] = stopped(stop_ns=61_000_000, scheduler=evidence)
    stats = record(process, mode="wall", max_overhead=0.1).stats

    assert bool(stats.spared_ticks) == skips
    assert (stats.pauses.max, stats.held.max) == (61_000_000, held_ns)


@pytest.fixture
def opened(monkeypatch, clock):
    """The processes that the sampler opens, because they hold up another one, in this order."""
    made = []

    def open_process(pid, **_):
        if pid == 2:
            raise NotPermitted(pid, "no")
        if pid == 3:
            raise NoSuchProcess(pid, "no")
        made.append(FakeProcess(clock, pid=pid))
        return made[-1]

    monkeypatch.setattr(ptrace_sampler, "LiveProcess", open_process)
    return made


def test_holder_that_was_visited_longest_ago_makes_room(process, opened):
    sampler = sampler_of(process, mode="wall", blame=True)

    def visit(tick, pids):
        sampler._last_tick = TickTime(tick, tick)
        return [sampler._holder(pid) is not None for pid in pids]

    assert all(visit(1, range(201, 233)))
    assert visit(1, [233]) == [False]
    assert sampler.profile.stats.holders_refused == 1
    assert len(opened) == 32, "a process that this tick has no room for is not opened"
    assert all(visit(2, [201, 233]))
    assert [each.pid for each in opened if each.closed] == [202]
    assert [each.pid for each in opened][32:] == [233]


def test_each_reason_for_an_unknown_holder_is_counted_once(process, opened):
    sampler = sampler_of(process, mode="wall", blame=True)
    stats = sampler.profile.stats
    assert sampler._holder(2) is None
    assert (stats.holders_refused, stats.holders_changed) == (1, 0)
    assert sampler._holder(3) is None
    assert (stats.holders_refused, stats.holders_changed) == (1, 1)
    assert sampler._holder(4) is not None
    opened[0].ends_at = 0
    sampler._last_tick = TickTime(1, 1)
    assert sampler._holder(4) is None
    assert (stats.holders_refused, stats.holders_changed, opened[0].closed) == (1, 2, True)
