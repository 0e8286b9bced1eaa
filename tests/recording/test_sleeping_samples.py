"""Threads that sleep are read, or counted again without a capture."""

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.process.capture_running import ANY_THREAD
from sfsample.process.had_cpu import RunState
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.recording.profile import Profile
from sfsample.unwind.row import UnwindRow
from tests.recording.fake_process import (
    NOT_RUN,
    PID,
    RATE,
    START,
    TICK,
    FakeClock,
    FakeProcess,
    Outermost,
    reading,
    record,
    stopped,
)


class AsleepBeforeSecondCapture(FakeProcess):
    """Its thread runs at the first capture, and sleeps from then on."""

    def capture(self, thread, patience_ns, stop_filter=ANY_THREAD):
        if stop_filter.awake and self.captured:
            return NotCaptured(Reason.OFF_CPU, "it sleeps", NOT_RUN.after, RunState.ASLEEP)
        return super().capture(thread, patience_ns)


@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_thread_asleep_before_its_second_capture_is_read(clock, mode):
    process = AsleepBeforeSecondCapture(clock)
    process.learned, process.readings = [True], {PID: reading(PID)}
    stats = record(process, mode=mode, duration=TICK).stats

    assert (len(process.captured), stats.pauses.count, stats.samples) == (1, 1, 1)
    assert stats.captures == {Capture.READ: 1}


# a number of questions that is not reached
ENDLESS = 1 << 30


class RunsForAnInstant(FakeProcess):
    """Thread 101 runs until /proc has been asked `asked` times where it sleeps."""

    asked = 3

    def asleep(self, tid):
        self.asked -= 1
        self.states[101] = "R" if self.asked > 0 else "S"
        return super().asleep(tid)

    def capture(self, thread, patience_ns, stop_filter=None):
        self.asked, self.states[101] = 0, "S"
        return super().capture(thread, patience_ns, stop_filter)


@pytest.mark.parametrize(
    "case",
    [
        (False, 3, 0, 0),
        (False, ENDLESS, 0, 1),  # longer than sfsample waits
        (True, 3, 0, 1),
        (False, 3, round(TICK * 1e9 / 50), 1),  # it runs often, so sfsample must sample that
    ],
)
def test_brief_run_is_waited_for_where_a_stop_breaks_the_sleep(clock, monkeypatch, case):
    restarts, asked, ran_ns, stops = case
    process = RunsForAnInstant(clock, (PID, "S"), (101, "S"))
    monkeypatch.setattr(process, "restarts", lambda asleep: restarts and asleep.number == 232)
    process.readings = {tid: reading(tid) for tid in (PID, 101)}
    process.fixed_times_run = {PID: 7, 101: 7}

    def wake_up():
        if clock.now() >= START + 3 * TICK and 101 in process.fixed_times_run:
            process.fixed_times_run, process.ran_ns = {PID: 7}, {101: ran_ns}
            process.states[101], process.asked = "R", asked
        return False

    max_pause = 0.005 if asked == ENDLESS else 60.0  # s of real time: a busy machine may take long
    stats = record(process, mode="wall", should_stop=wake_up, duration=5 * TICK, max_pause=max_pause).stats

    assert (len(process.captured), stats.captures[Capture.STOPPED]) == (stops, stops)
    assert stats.samples == 10


def test_stop_is_counted_where_the_second_capture_fails(clock):
    class FailsSecondCapture(FakeProcess):
        def capture(self, thread, patience_ns, stop_filter=None):
            if self.captured:
                return NotCaptured(Reason.NOT_STOPPABLE, "too late")
            return super().capture(thread, patience_ns, stop_filter)._replace(eintr=True)

    process = FailsSecondCapture(clock)
    process.learned = [True]
    stats = record(process, duration=TICK).stats

    assert (stats.pauses.count, stats.eintr_prone_stops) == (1, 1)
    assert stats.captures == {Capture.FAILED: 1}


def test_sleeping_thread_is_read_and_not_stopped(clock):
    process = FakeProcess(clock, (PID, "S"), (101, "D"))
    process.readings = {tid: reading(tid) for tid in (PID, 101)}
    stats = record(process, mode="wall").stats

    assert process.captured == []
    assert stats.captures == {Capture.READ: 16}
    assert (stats.samples, stats.pauses.count, stats.stacks) == (16, 0, {StopReason.OUTERMOST: 16})


def test_thread_asleep_before_its_stop_is_read(process):
    process.answers[PID] = NotCaptured(Reason.OFF_CPU, "it sleeps", b"5 0 1", RunState.ASLEEP)
    process.readings[PID] = reading(PID)
    stats = record(process, mode="wall").stats

    assert (stats.captures, stats.pauses.count) == ({Capture.READ: 8}, 0)


@pytest.mark.parametrize(("state", "restarts", "stops"), [("S", True, 1), ("S", False, 0), ("D", True, 0)])
def test_sleeping_thread_is_stopped_once_for_a_register_where_its_call_restarts(
    clock, monkeypatch, state, restarts, stops
):
    needs_rbx = UnwindRow(Rule(3, 8, deref=False), Rule(CFA, -8, deref=True))
    process = FakeProcess(clock, (PID, state))
    process.readings = {PID: reading(PID)}
    monkeypatch.setattr(process, "restarts", lambda asleep: restarts and asleep.number == 232)
    stats = record(process, mode="wall", steppers=(Outermost(needs_rbx),)).stats

    assert len(process.captured) == stats.captures[Capture.STOPPED] == stops
    assert stats.captures[Capture.READ] == 8 - stops
    assert stats.samples == 8


# -- threads that have not run


def test_thread_that_has_not_run_is_counted_without_a_capture(clock):
    process = FakeProcess(clock, (PID, "S"))
    process.readings = {PID: reading(PID)}
    process.fixed_times_run = {PID: 7}
    profile = record(process, mode="wall")

    assert profile.stats.captures == {Capture.READ: 1, Capture.REUSED: 7}
    assert list(profile.counts.values()) == [profile.stats.samples] == [8]
    assert sum(total.wall_ns for total in profile.totals.values()) == round(7 * TICK * 1e9)


@pytest.mark.parametrize("timeline", [False, True])
def test_waits_shorter_than_the_limit_are_left_out(clock, timeline):
    process = FakeProcess(clock, (PID, "S"), (101, "S"))
    process.readings = {tid: reading(tid) for tid in (PID, 101)}
    process.fixed_times_run = {PID: 7}  # it sleeps all the time; 101 runs between any two ticks
    profile = record(process, mode="wall", min_wait=3 * TICK, timeline=timeline)

    assert (profile.stats.samples, profile.stats.brief_waits) == (8, 8)
    assert {key.tid for key in profile.counts} == {PID}
    assert sum(total.wall_ns for total in profile.totals.values()) == round(7 * TICK * 1e9)


def test_thread_that_has_not_run_is_no_sample_in_cpu_mode(clock):
    process = FakeProcess(clock, (PID, "R"))
    process.fixed_times_run = {PID: 7}
    process.answers[PID] = stopped(stop_ns=1, scheduler=NOT_RUN)
    stats = record(process).stats

    assert len(process.captured) == stats.samples == 1  # the first; then it waits for a CPU


def test_deferred_samples_equal_prompt_samples():
    """One thread never runs, one runs after a while, one ends."""

    def recorded(*, timeline):
        clock = FakeClock()
        process = FakeProcess(clock, (PID, "S"), (101, "S"), (102, "S"))
        process.readings = {tid: reading(tid) for tid in process.states}
        process.fixed_times_run = dict.fromkeys(process.states, 7)

        def change():
            if 1.3 <= clock.now() - START < 1.6:
                process.fixed_times_run.pop(101, None)
            elif clock.now() - START >= 1.6:
                process.fixed_times_run[101] = 7
            if clock.now() - START >= 2.7:
                process.states.pop(102, None)
            return False

        profile = record(process, mode="wall", duration=4.4, should_stop=change, timeline=timeline)
        totals = profile.totals.items()
        return profile.stats, {key.tid: (total.times, total.wall_ns, total.cpu_ns) for key, total in totals}

    (deferred, deferred_totals), (prompt, prompt_totals) = recorded(timeline=False), recorded(timeline=True)
    assert deferred_totals == prompt_totals
    assert set(deferred_totals) == {PID, 101, 102}
    assert deferred.captures == prompt.captures
    assert deferred.captures[Capture.REUSED] > 60
    assert deferred.frames == prompt.frames


def test_idle_samples_are_added_at_growing_intervals_until_the_thread_runs(clock, monkeypatch):
    process = FakeProcess(clock, (PID, "S"))
    process.readings[PID] = reading(PID)
    process.fixed_times_run = {PID: 7}
    added_at: list[int] = []
    add = Profile.add

    def note(profile, sample):
        added_at.append(round(clock.now() - START))
        add(profile, sample)

    monkeypatch.setattr(Profile, "add", note)

    def run_for_a_tick():
        process.fixed_times_run[PID] = 8 if 30 <= clock.now() - START < 30 + TICK else 7
        return False

    stats = record(process, mode="wall", duration=36.0, should_stop=run_for_a_tick).stats

    assert added_at == [0, 1, 3, 7, 15, 23, 30, 30, 31, 33, 36]
    assert stats.samples == stats.ticks == 36 * RATE


def test_threads_are_listed_when_one_has_run_and_within_a_second_after_it(clock):
    """It may have created others, which /proc may show late; while all sleep, nothing changes."""
    process = FakeProcess(clock, (PID, "S"), (101, "S"))
    process.readings = {tid: reading(tid) for tid in (PID, 101, 102)}
    process.fixed_times_run = dict.fromkeys(process.readings, 7)
    listed: list[float] = []

    def tids(**_):
        listed.append((clock.now() - START) / TICK)
        return sorted(process.states)

    process.tids = tids

    def create_thread():
        if clock.now() - START >= 20 * TICK and 102 not in process.states:
            process.states[102] = "S"
            process.fixed_times_run[101] = 8
            process.readings[101] = reading(101, times_run=8)
        return False

    profile = record(process, mode="wall", duration=28 * TICK, should_stop=create_thread)

    assert listed == [0, 8, 21, 24]
    assert {key.tid: count for key, count in profile.counts.items()} == {PID: 28, 101: 28, 102: 7}


@pytest.mark.parametrize("ended", ["Z", "gone"])
def test_end_of_a_sleeping_thread_is_noticed(clock, ended):
    process = FakeProcess(clock, (PID, "S"), (101, "S"))
    process.readings = {tid: reading(tid) for tid in (PID, 101)}
    process.fixed_times_run = dict.fromkeys(process.readings, 7)

    def end():
        if clock.now() - START >= 5 * TICK:
            process.fixed_times_run[101] = 9
            if ended == "Z":
                process.states[101] = "Z"
            else:
                process.states.pop(101, None)
        return False

    profile = record(process, mode="wall", duration=12 * TICK, should_stop=end)

    assert {key.tid: count for key, count in profile.counts.items()} == {PID: 12, 101: 6}


class CountedReads(FakeProcess):
    """One thread, which sleeps; counts how often its counters are read."""

    def __init__(self, clock, pid):
        super().__init__(clock, (pid, "S"), pid=pid)
        self.readings, self.fixed_times_run, self.reads = {pid: reading(pid)}, {pid: 7}, 0

    def counters(self, tid):
        self.reads += 1
        return super().counters(tid)


@pytest.mark.parametrize(("number", "most_reads"), [(10, 110), (40, 50)])
def test_idle_threads_of_many_processes_take_turns(clock, number, most_reads):
    processes = [CountedReads(clock, PID + at) for at in range(number)]
    profile = record(*processes, mode="wall", duration=100 * TICK, jitter=lambda: 0.999)

    assert {*profile.counts.values()} == {100}
    reads = [process.reads for process in processes]
    assert most_reads / 2 < max(reads) <= most_reads


def test_process_that_begins_to_run_is_sampled_at_every_tick_again(clock):
    processes = [CountedReads(clock, PID + at) for at in range(40)]
    busy = processes[20]

    def run_later():
        if clock.now() > START + 50 * TICK:
            busy.fixed_times_run.clear()
            busy.states[busy.pid] = "R"
            busy.ran_ns[busy.pid] = round((clock.now() - START) * 1e9)
        return False

    record(*processes, mode="wall", duration=100 * TICK, jitter=lambda: 0.999, should_stop=run_later)
    assert len([at for at in busy.ticks() if at > 50]) > 40
