"""What a recording counts: samples by mode, failed captures, incomplete walks, and the time of samples."""

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.errors import NotPermitted, TargetError
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.recording.sample import ThreadKey
from sfsample.unwind.row import UnwindRow
from tests.recording.fake_process import (
    PID,
    TICK,
    FakeClock,
    FakeProcess,
    Outermost,
    record,
    sampler_of,
)


def test_cpu_mode_samples_running_threads(clock):
    process = FakeProcess(clock, (PID, "S"), (101, "R"), (102, "D"), (103, "T"))
    stats = record(process, mode="cpu").stats

    assert {tid for tid, _ in process.captured} == {101}
    assert stats.captures == {Capture.STOPPED: 8}
    assert not stats.problems


def test_cpu_mode_takes_no_sample_of_an_idle_process(clock):
    process = FakeProcess(clock, (PID, "S"))
    stats = record(process, mode="cpu").stats

    assert (stats.ticks, stats.samples, process.captured) == (8, 0, [])
    assert (stats.captures, stats.problems, stats.ended_by) == ({}, {}, "duration")


def test_wall_mode_samples_all_threads(clock):
    process = FakeProcess(clock, (PID, "S"), (101, "R"))
    profile = record(process, mode="wall")

    assert [tid for tid, _ in process.captured[:2]] == [PID, 101]
    assert profile.stats.samples == 16
    assert profile.stats.threads == 2
    assert profile.processes == {PID: f"thread {PID}"}
    names = {ThreadKey(PID, PID, 5): f"thread {PID}", ThreadKey(PID, 101, 5): "thread 101"}
    assert profile.threads == names


# -- captures that fail


def test_uninterruptible_sleep_is_a_failed_capture_in_wall_mode(clock):
    """A thread in state D is never asked to stop."""
    process = FakeProcess(clock, (PID, "D"))
    stats = record(process, mode="wall").stats

    assert process.captured == []
    assert stats.captures == {Capture.FAILED: 8}
    [(text, count)] = stats.problems.items()
    assert "state D" in text
    assert count == 8


def test_failed_capture_is_counted(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.answers[101] = NotCaptured(Reason.NOT_STOPPABLE, "did not stop in time")
    stats = record(process).stats

    assert stats.captures == {Capture.STOPPED: 8, Capture.FAILED: 8}
    assert (stats.samples, stats.pauses.count) == (8, 8)
    assert stats.problems == {"not captured: did not stop in time": 8}


def test_ended_thread_is_no_failed_capture(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.answers[101] = NotCaptured(Reason.GONE, "exited")
    stats = record(process).stats

    assert stats.captures == {Capture.STOPPED: 8}
    assert not stats.problems


def test_refusal_before_the_first_sample_is_an_error(process):
    process.answers[PID] = NotPermitted(PID, "not permitted", "run as root")

    with pytest.raises(NotPermitted):
        record(process)


def test_refusal_after_the_first_sample_is_a_failed_capture(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.answers[101] = NotPermitted(PID, "not permitted", "run as root", "or so")
    stats = record(process).stats

    assert stats.captures == {Capture.STOPPED: 8, Capture.FAILED: 8}
    assert stats.problems == {"not captured: not permitted (run as root; or so)": 8}


@pytest.mark.parametrize("failure", [TargetError(PID, "no files left", "allow more"), OSError(2, "gone")])
def test_failure_after_the_first_sample_keeps_all_samples(process, failure):
    def fail() -> bool:
        process.answers = {PID: failure} if len(process.captured) == 3 else {}
        return False

    stats = record(process, should_stop=fail).stats

    assert (stats.samples, stats.ended_by, stats.ticks) == (3, "failure", 4)
    assert stats.failure[0] == f"ended early: {failure}"
    assert stats.problems[stats.failure[0]] == 1


def test_failure_before_the_first_sample_is_an_error(process):
    process.answers = {PID: TargetError(PID, "no files left")}
    with pytest.raises(TargetError, match="no files left"):
        record(process)


def test_exception_of_should_stop_keeps_all_samples(process):
    process.costs = {3: 0}

    def interrupt():
        if len(process.captured) == 3:
            raise KeyboardInterrupt
        return False

    sampler = sampler_of(process)
    with pytest.raises(KeyboardInterrupt):
        sampler.run(interrupt)

    assert sampler.profile.stats.samples == 3
    assert sampler.profile.stats.duration_s > 0
    assert sampler.profile.stats.as_json()["modules"] == 1


# -- what a sample is


def test_places_are_vaddrs_in_modules(process):
    profile = record(process)
    [(key, count)] = profile.counts.items()

    assert count == 8
    assert (key.process_key, key.tid, key.stop_reason) == (PID, PID, StopReason.OUTERMOST)
    [place] = key.locations
    assert (place.module.path, place.address, place.lookup) == ("/bin/x", 0x1000, 0x1000)


def test_incomplete_walk_is_a_problem():
    for row, reason in (
        (UnwindRow(Rule(7, 0x900, deref=False), Rule(CFA, -8, deref=True)), StopReason.BAD_MEMORY),
        (UnwindRow(Rule(3, 8, deref=False), Rule(CFA, -8, deref=True)), StopReason.REGISTER_UNKNOWN),
    ):
        process = FakeProcess(FakeClock())
        stats = record(process, steppers=(Outermost(row),)).stats
        assert stats.stacks == {reason: 8}
        assert stats.problems == {f"{reason} at /bin/x+0x1000": 8}


def test_stack_cut_at_max_frames_is_no_problem(process):
    endless = UnwindRow(Rule(7, 8, deref=False), Rule(16, 1, deref=False))
    stats = record(process, steppers=(Outermost(endless),), max_frames=3).stats

    assert stats.stacks == {StopReason.MAX_FRAMES: 8}
    assert stats.frames == {Found.CONTEXT: 8, Found.SFRAME: 16}
    assert not stats.problems


def test_first_sight_of_a_trampoline_takes_a_second_capture(process):
    process.learned = [True]
    stats = record(process, duration=TICK).stats

    assert (len(process.captured), stats.pauses.count, stats.samples) == (2, 2, 1)
    assert stats.captures == {Capture.STOPPED: 1}  # of the sample


def test_statistics_contain_pauses_and_problems_of_files(process):
    process.opener.problems.append("/bin/x: replaced on disk")
    stats = record(process).stats

    assert (stats.pauses.count, stats.pauses.max) == (8, 61_000)
    assert stats.problems == {"/bin/x: replaced on disk": 1}
    assert stats.sampler_max_rss_bytes > 0


def test_maps_are_read_once_a_second(process):
    record(process, duration=3.0)

    assert 1 + 2 <= process.maps_read <= 1 + 4


# -- the time that samples stand for


def test_sample_stands_for_the_time_since_the_tick_before(process):
    process.costs = {2: 3.25 * TICK}
    profile = record(process, timeline=True)
    [key] = profile.counts
    tick_ns = round(TICK * 1e9)

    assert list(profile.timeline.at_ns) == [tick * tick_ns for tick in (0, 1)] + [
        round(tick * tick_ns) for tick in (4.25, 5, 6, 7)
    ]
    assert profile.timeline.keys == [key]
    assert profile.totals[key].wall_ns == sum(profile.timeline.wall_ns) == 7 * tick_ns
    assert profile.started_ns > 0


def test_timeline_is_kept_only_on_request(process):
    assert record(process).timeline is None


def test_cpu_time_is_charged_once(process):
    process.ran_ns[PID] = 0

    def run() -> bool:
        process.ran_ns[PID] += 1000
        return False

    profile = record(process, should_stop=run)
    stats = profile.stats

    assert stats.cpu_charged_ns == process.ran_ns[PID] - 1000  # not what it had used before
    assert sum(total.cpu_ns for total in profile.totals.values()) == stats.cpu_sampled_ns
    assert 0 <= stats.cpu_charged_ns - stats.cpu_sampled_ns <= 3000  # since the last sample


@pytest.mark.parametrize(
    ("cpu_times_ns", "charged_ns"), [([50, 80], 30), ([50, None], 7), ([50, 55], 7), ([], 7)]
)
def test_cpu_time_of_unseen_threads_is_charged(process, cpu_times_ns, charged_ns):
    """The sampled thread has used 7 ns; the process the difference of what the kernel says, where it does."""
    process.ran_ns = {PID: 10}
    process.cpu_times_ns = cpu_times_ns

    def run() -> bool:
        process.ran_ns[PID] = 10 if len(process.captured) < 2 else 17
        return False

    assert record(process, duration=4 * TICK, should_stop=run).stats.cpu_charged_ns == charged_ns
