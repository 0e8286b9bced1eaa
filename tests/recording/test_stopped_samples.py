"""Threads that wait for a CPU are no sample in cpu mode, and are captured when they stop late."""

from collections import Counter

import pytest

from sfsample.core.snapshot import Capture, SchedulerEvidence
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.process.capture import ThreadCapturer
from sfsample.process.had_cpu import RunState
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.recording import process_sampler, ptrace_sampler
from sfsample.unwind.unwinder import Unwinder
from tests.recording.fake_process import (
    CODE,
    PID,
    START,
    TICK,
    FakeProcess,
    Outermost,
    record,
    stopped,
)


@pytest.mark.parametrize("runnable", [True, False])
def test_thread_that_waits_for_a_cpu_is_not_stopped_in_cpu_mode(process, runnable):
    process.answers[PID] = NotCaptured(
        Reason.OFF_CPU, "has no CPU", b"5 0 1", RunState.WAITING if runnable else RunState.ASLEEP
    )
    stats = record(process).stats

    assert (stats.samples, stats.pauses.count, stats.waiting_for_cpu) == (0, 0, 8 * runnable)


def test_thread_that_waited_before_its_stop_is_no_sample_in_cpu_mode(process):
    process.answers[PID] = stopped(stop_ns=1, scheduler=SchedulerEvidence(b"1 1 1", b"1 1 3"))
    stats = record(process).stats

    assert (stats.samples, stats.pauses.count, stats.waiting_for_cpu) == (0, 8, 8)


# -- threads that stop late


def test_late_stop_is_collected_before_other_threads_are_captured(clock, monkeypatch):
    monkeypatch.setattr(process_sampler, "_COLLECT_NS", 0)
    process = FakeProcess(clock, *[(tid, "R") for tid in range(100, 140)])
    process.answers[100] = NotCaptured(Reason.PENDING, "waits for a CPU")

    process.collect_stopped = lambda: process.captured and process.answers.clear()
    process.is_pending = lambda thread: thread.tid in process.answers
    stats = record(process, duration=TICK).stats

    assert [tid for tid, _ in process.captured] == [100, *range(100, 140)]
    assert stats.samples == 40


def test_stop_after_max_pause_is_collected_at_once(clock, monkeypatch):
    """The stop ends the sleep until the next tick; otherwise it would be noticed up to a millisecond late."""
    process = FakeProcess(clock)
    process.answers[PID] = NotCaptured(Reason.PENDING, "waits for a CPU")
    stops_at = START + TICK / 3

    def await_stop(seconds):
        clock.time = min(stops_at, clock.time + seconds) if clock.time < stops_at else clock.time + seconds

    monkeypatch.setattr(process_sampler, "await_stop", await_stop)
    monkeypatch.setattr(ptrace_sampler, "await_stop", await_stop)
    process.is_pending = lambda _: clock.time < stops_at or process.answers.pop(PID, None) is None
    process.release_pending = lambda: PID not in process.answers
    record(process, duration=3 * TICK, max_pause=TICK / 1000)

    assert [at for _, at in process.captured] == [START, stops_at, START + TICK, START + 2 * TICK]


@pytest.mark.parametrize("changes", [False, True])
def test_late_stop_is_dropped_if_modules_have_changed_since_the_request(clock, changes):
    """The modules are checked from before the request on, not only from just before the capture."""
    process, size = FakeProcess(clock), 8192
    process.modules = ModuleMap(
        lambda: (Mapping(CODE, CODE + size, True, True, 0x1000, "08:01", 7, "/bin/x", False),),
        process.modules._open_image,
    )
    capturer = ThreadCapturer(process, Unwinder(process.modules, steppers=(Outermost(),)))
    assert process.modules.find(CODE)
    size = 4096
    process.modules.refresh()
    assert process.modules.find(CODE) in process.modules.unstable_modules
    process.answers[PID] = NotCaptured(Reason.PENDING, "waits for a CPU")
    assert capturer.capture(process.thread(PID), "R").reason is Reason.PENDING

    if changes:
        size = 8192
        process.modules.refresh()
    process.answers[PID] = stopped(scheduler=SchedulerEvidence(b"5 7 1", b"6 8 2", stopped_ns=1))
    captured = capturer.capture(process.thread(PID), "R")

    assert isinstance(captured, NotCaptured) == changes


def test_long_wait_does_not_make_collections_more_frequent(clock, monkeypatch):
    process = FakeProcess(clock)
    process.answers[PID] = NotCaptured(Reason.PENDING, "waits for a CPU")
    process.is_pending = lambda _: True
    process.release_pending = lambda: False
    monkeypatch.setattr(process_sampler, "await_stop", clock.sleep)
    monkeypatch.setattr(ptrace_sampler, "await_stop", clock.sleep)
    collections = Counter()  # by tick
    process.collect_stopped = lambda: collections.update([round((clock.now() - START) / TICK * 4) // 4])
    record(process, duration=20 * TICK, max_pause=TICK / 1000)

    assert collections[18] < 2 * collections[2]  # once it was nine times as many


def test_at_most_8_stops_are_pending_and_other_threads_are_first_in_the_next_tick(clock, monkeypatch):
    """If all threads stopped at once, the last would stay stopped until the others were captured."""
    tids = range(100, 120)
    process = FakeProcess(clock, *[(tid, "R") for tid in tids])
    pending, most_pending = set(), 0

    def capture(thread, *arguments):
        nonlocal most_pending
        if thread in pending:
            pending.remove(thread)
            return FakeProcess.capture(process, thread, *arguments)
        pending.add(thread)
        most_pending = max(most_pending, len(pending))
        return NotCaptured(Reason.PENDING, "waits for a CPU")

    process.capture = capture
    process.is_pending = lambda _: clock.now() % (TICK / 4) <= TICK / 8  # not in the tick of the request
    monkeypatch.setattr(process_sampler, "await_stop", clock.sleep)
    monkeypatch.setattr(ptrace_sampler, "await_stop", clock.sleep)
    profile = record(process, mode="wall", max_pause=TICK / 1000)

    assert most_pending == 8
    counts = {key.tid: n for key, n in profile.counts.items()}
    assert counts.keys() == {*tids}
    assert max(counts.values()) - min(counts.values()) <= 3

    pending.clear()
    process.is_pending = lambda _: True
    stats = record(process, mode="wall", duration=TICK, max_pause=TICK / 1000).stats

    assert (stats.samples, stats.captures[Capture.FAILED]) == (0, 20)
    assert stats.problems["not captured: the recording ended before its turn"] == 12
