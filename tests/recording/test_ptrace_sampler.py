"""The loop, on a clock that the test turns and a process that the test invents.

The rate is 8 Hz, so that every instant is exact in binary and "late" means what the test says.
"""

from collections import Counter
from types import SimpleNamespace

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.filesystem import ProcessRoot
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import Capture, SchedulerEvidence, ThreadSnapshot
from sfsample.core.stack import Found, StopReason
from sfsample.errors import NoSuchProcess, NotPermitted, TargetError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.process.capture import ThreadCapturer
from sfsample.process.capture_running import ANY_THREAD
from sfsample.process.capture_sleeping import SleepingThread
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.proc_text import Stat, SyscallInfo
from sfsample.process.scheduler import RunState
from sfsample.process.thread import Thread
from sfsample.recording import process_sampler as watched
from sfsample.recording.options import RecordOptions
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from sfsample.recording.sample import ThreadKey
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import Unwinder
from tests.builders.elf_builder import Load, elf

PID, RATE, START = 100, 8.0, 1000.0
TICK = 1 / RATE
ENDLESS = 1 << 30
CODE, STACK = 0x40_1000, 0x7000_0000


class FakeClock:
    """Time passes when somebody sleeps, and when a sample takes `cost`."""

    def __init__(self) -> None:
        self.time = START
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.slept.append(seconds)
        self.time += seconds


class Outermost:
    """A stepper to whom every function is the first of its thread, or the caller is one word up."""

    found = Found.SFRAME

    def __init__(self, row: UnwindRow | None = None) -> None:
        self.row = row or UnwindRow(Rule(7, 8, deref=False), None)

    def row_at(self, frame, module, arch):  # noqa: ARG002 - the protocol
        return self.row


class FakeProcess:
    """Threads with a state; what `capture` answers; and when it happens, by the clock."""

    def __init__(self, clock: FakeClock, *threads: tuple[int, str], pid: int = PID) -> None:
        self.pid = pid
        self.start_time, self.name = 5, "?"
        self.clock = clock
        self.states = dict(threads or [(pid, "R")])
        self.captured: list[tuple[int, float]] = []
        self.answers: dict[int, object] = {}
        self.costs: dict[int, float] = {}  # seconds that capture number N takes
        self.ends_at = float("inf")
        self.learns: list[bool] = []
        self.threads: dict[int, Thread] = {}
        self.running, self.is_active = self, True  # it answers for its RunningCapture, too
        image = ElfImage(elf([Load(0x1000, bytes(4096), offset=0x1000)]), "x")
        self.maps_read = 0
        self.modules = ModuleMap(self._maps, lambda _: image)
        self.opener = SimpleNamespace(problems=[])
        self.root = ProcessRoot(None, pid, 0)
        self.readings: dict[int, SleepingThread] = {}
        self.cpu: list[int | None] = []  # CPU time of the process, each time it is asked for
        self.proc = SimpleNamespace(thread_stat=self.thread_stat, counters=self.counters, asleep=self.asleep,
                                    not_run=self.not_run, holder=lambda tid: self.holders.get(tid, 0),
                                    cpu_ns=lambda: self.cpu.pop(0) if self.cpu else None,
                                    has_ended=lambda: self.states.keys() <= {pid})  # fmt: skip
        self.forced: list[bool] = []
        self.still: dict[int, int] = {}
        self.holders: dict[int, int] = {}  # of ids
        self.arch = AMD64
        self.ran_ns: dict[int, int] = {}
        self.runs = 100
        self.accounted_ns = None

    def _maps(self):
        self.maps_read += 1
        if self.clock.now() >= self.ends_at:
            return ()
        return (Mapping(CODE, CODE + 4096, True, True, 0x1000, "08:01", 7, "/bin/x", False),)

    def release_pending(self):
        return True

    def collect_stopped(self):
        pass

    def thread(self, tid):
        return self.threads.setdefault(tid, Thread(tid))

    def read(self, thread):
        return self.readings.get(thread.tid)

    def restarts(self, _asleep):
        return True

    def learn(self, _thread, _stack):
        return self.learns.pop() if self.learns else False

    def tids(self, *, force):
        self.forced.append(force)
        return sorted(self.states)

    def thread_stat(self, tid):
        if self.clock.now() >= self.ends_at or tid not in self.states:
            return None
        return Stat(f"thread {tid}", self.states[tid], 0, 5)

    def asleep(self, tid):
        return None if self.states[tid] == "R" else SyscallInfo(232, (), STACK, CODE)

    def counters(self, tid):
        """One more run at every look, unless the test has said that it stands still."""
        if self.clock.now() >= self.ends_at:
            return None
        if tid not in self.still:
            self.runs += 1
        return b"%d 0 %d" % (self.ran_ns.get(tid, 0), self.still.get(tid, self.runs))

    def not_run(self, threads):
        said = [
            (t, t.off_cpu_counters is not None and self.counters(t.tid) == t.off_cpu_counters)
            for t in threads
        ]
        return [t for t, same in said if same], [t for t, same in said if not same]

    def replaced(self, _tid, _modules):
        return False

    def capture(self, thread, patience_ns, stop_filter=None):  # noqa: ARG002
        tid = thread.tid
        self.captured.append((tid, self.clock.now()))
        self.clock.time += self.costs.get(len(self.captured), 0)
        answer = self.answers.get(tid)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        memory = BytesMemory(STACK, bytes(16))
        return ThreadSnapshot(tid, {16: CODE, 7: STACK}, memory, bounded=False, stop_ns=61_000, eintr=False)

    def ticks(self) -> list[float]:
        """When captures happened, in ticks after the start."""
        return [(at - START) / TICK for _, at in self.captured]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def process(clock):
    return FakeProcess(clock)


def record(*targets, should_stop=lambda: False, **options):
    chosen = {"rate": RATE, "duration": 1.0, "steppers": (Outermost(),), **options}
    duration = chosen.pop("duration")
    return PtraceSampler(targets, RecordOptions(**chosen), duration, targets[0].clock, jitter=lambda: 0).run(
        should_stop
    )


# -- the schedule


def test_tick_k_is_at_start_plus_k_divided_by_the_rate(process):
    stats = record(process).stats

    assert process.ticks() == list(range(8))
    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 0, 8)
    assert stats.duration_s == 1.0  # the last tick's time is waited for
    assert stats.ended_by == "duration"


def test_the_time_that_a_sample_takes_does_not_move_the_schedule(process):
    process.costs = {1: 0.3 * TICK, 2: 0.9 * TICK, 5: 0.5 * TICK}
    stats = record(process).stats

    assert process.ticks() == list(range(8))
    assert stats.late_ticks == 0


def test_a_tick_that_is_a_little_late_is_taken(process):
    process.costs = {1: 1.5 * TICK}
    stats = record(process).stats

    assert process.ticks() == [0, 1.5, 2, 3, 4, 5, 6, 7]
    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 0, 8)


def test_missed_ticks_are_counted_and_never_made_up(process):
    process.costs = {2: 3.25 * TICK}
    stats = record(process).stats

    assert process.ticks() == [0, 1, 4.25, 5, 6, 7]  # 2 and 3 were missed
    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 2, 6)


def test_ticks_missed_at_the_end_are_no_more_than_were_due(process):
    process.costs = {7: 100 * TICK}
    stats = record(process).stats

    assert (stats.ticks, stats.late_ticks, stats.samples) == (8, 1, 7)


@pytest.mark.parametrize(("duration", "ticks"), [(0.5, 4), (0.01, 1), (2.0, 16), (1.05, 8)])
def test_duration(process, duration, ticks):
    stats = record(process, duration=duration).stats

    assert (stats.ticks, len(process.captured)) == (ticks, ticks)
    assert stats.duration_s == pytest.approx(duration)


def test_should_stop(process):
    stats = record(process, duration=None, should_stop=lambda: len(process.captured) >= 3).stats

    assert (stats.ended_by, stats.samples) == ("signal", 3)


def test_should_stop_is_asked_ten_times_a_second(clock, process):
    stats = record(process, rate=0.125, duration=None, should_stop=lambda: clock.now() >= START + 1).stats

    assert stats.samples == 1
    assert max(clock.slept) <= 0.1
    assert clock.now() < START + 1.11


def test_should_stop_before_anything(process):
    stats = record(process, should_stop=lambda: True).stats

    assert (stats.ended_by, stats.ticks, stats.samples) == ("signal", 0, 0)


def test_should_stop_while_waiting_for_the_end_of_the_last_tick(process):
    stats = record(process, should_stop=lambda: len(process.captured) == 8).stats

    assert (stats.ended_by, stats.samples) == ("signal", 8)


# -- targets that end


def test_a_target_that_ends(process):
    process.ends_at = START + 2.5 * TICK
    stats = record(process, duration=None).stats

    assert (stats.ended_by, stats.samples) == ("target", 3)
    assert stats.as_json()["modules"] == 1


def test_a_target_that_ended_before_a_refresh_of_its_maps_keeps_its_modules(process):
    process.ends_at = START + 2 * 4.0
    stats = record(process, rate=0.25, duration=None).stats

    assert stats.ended_by == "target"
    assert stats.as_json()["modules"] == 1


def test_the_others_go_on(clock, process):
    other = FakeProcess(clock, pid=200)
    process.ends_at = START + 2.5 * TICK
    stats = record(process, other).stats

    assert (stats.ended_by, len(process.captured), len(other.captured)) == ("duration", 3, 8)


# -- which threads


def test_cpu_mode_samples_threads_that_run(clock):
    process = FakeProcess(clock, (PID, "S"), (101, "R"), (102, "D"), (103, "T"))
    stats = record(process, mode="cpu").stats

    assert {tid for tid, _ in process.captured} == {101}
    assert stats.captures == {Capture.STOPPED: 8}
    assert not stats.problems


def test_cpu_mode_of_an_idle_process(clock):
    process = FakeProcess(clock, (PID, "S"))
    stats = record(process, mode="cpu").stats

    assert (stats.ticks, stats.samples, process.captured) == (8, 0, [])
    assert (stats.captures, stats.problems, stats.ended_by) == ({}, {}, "duration")


def test_wall_mode_samples_all(clock):
    process = FakeProcess(clock, (PID, "S"), (101, "R"))
    profile = record(process, mode="wall")

    assert [tid for tid, _ in process.captured[:2]] == [PID, 101]
    assert profile.stats.samples == 16
    assert profile.stats.threads == 2
    assert profile.processes == {PID: f"thread {PID}"}
    names = {ThreadKey(PID, PID, 5): f"thread {PID}", ThreadKey(PID, 101, 5): "thread 101"}
    assert profile.threads == names


def test_uninterruptible_sleep_is_a_failed_capture_in_wall_mode(clock):
    """It is read like any other, and never asked to stop."""
    process = FakeProcess(clock, (PID, "D"))
    stats = record(process, mode="wall").stats

    assert process.captured == []
    assert stats.captures == {Capture.FAILED: 8}
    [(text, count)] = stats.problems.items()
    assert "state D" in text
    assert count == 8


# -- captures that fail


def test_a_failed_capture_costs_that_sample_and_is_counted(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.answers[101] = NotCaptured(Reason.TIMEOUT, "did not stop in time")
    stats = record(process).stats

    assert stats.captures == {Capture.STOPPED: 8, Capture.FAILED: 8}
    assert (stats.samples, stats.pauses.count) == (8, 8)
    assert stats.problems == {"not captured: did not stop in time": 8}


def test_a_thread_that_has_ended_is_no_failure(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.answers[101] = NotCaptured(Reason.GONE, "exited")
    stats = record(process).stats

    assert stats.captures == {Capture.STOPPED: 8}
    assert not stats.problems


def test_a_refusal_before_the_first_sample_ends_the_recording(process):
    process.answers[PID] = NotPermitted(PID, "not permitted", "run as root")

    with pytest.raises(NotPermitted):
        record(process)


def test_a_later_refusal_is_a_failed_capture(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.answers[101] = NotPermitted(PID, "not permitted", "run as root", "or so")
    stats = record(process).stats

    assert stats.captures == {Capture.STOPPED: 8, Capture.FAILED: 8}
    assert stats.problems == {"not captured: not permitted (run as root; or so)": 8}


@pytest.mark.parametrize("failure", [TargetError(PID, "no files left", "allow more"), OSError(2, "gone")])
def test_a_failure_in_the_middle_loses_nothing(process, failure):
    def fail() -> bool:
        process.answers = {PID: failure} if len(process.captured) == 3 else {}
        return False

    stats = record(process, should_stop=fail).stats

    assert (stats.samples, stats.ended_by, stats.ticks) == (3, "failure", 4)
    assert stats.failure[0] == f"ended early: {failure}"
    assert stats.problems[stats.failure[0]] == 1


def test_a_failure_before_the_first_sample_is_an_error(process):
    process.answers = {PID: TargetError(PID, "no files left")}
    with pytest.raises(TargetError, match="no files left"):
        record(process)


def test_after_an_exception_what_was_collected_is_complete(process):
    process.costs = {3: 0}

    def interrupted():
        if len(process.captured) == 3:
            raise KeyboardInterrupt
        return False

    sampler = PtraceSampler(
        [process], RecordOptions(rate=RATE, steppers=(Outermost(),)), 1.0, process.clock, jitter=lambda: 0
    )
    with pytest.raises(KeyboardInterrupt):
        sampler.run(interrupted)

    assert sampler.profile.stats.samples == 3
    assert sampler.profile.stats.duration_s > 0
    assert sampler.profile.stats.as_json()["modules"] == 1


# -- what a sample is


def test_places_are_vaddrs_in_modules(process):
    profile = record(process)
    [(key, count)] = profile.counts.items()

    assert count == 8
    assert (key.pid, key.tid, key.stop_reason) == (PID, PID, StopReason.OUTERMOST)
    [place] = key.locations
    assert (place.module.path, place.address, place.lookup) == ("/bin/x", 0x1000, 0x1000)


def test_where_a_walk_stopped_is_a_problem():
    for row, reason in (
        (UnwindRow(Rule(7, 0x900, deref=False), Rule(CFA, -8, deref=True)), StopReason.BAD_MEMORY),
        (UnwindRow(Rule(3, 8, deref=False), Rule(CFA, -8, deref=True)), StopReason.REGISTER_UNKNOWN),
    ):
        process = FakeProcess(FakeClock())
        stats = record(process, steppers=(Outermost(row),)).stats
        assert stats.stacks == {reason: 8}
        assert stats.problems == {f"{reason} at /bin/x+0x1000": 8}


def test_a_stack_that_is_cut_at_max_frames_is_no_problem(process):
    endless = UnwindRow(Rule(7, 8, deref=False), Rule(16, 1, deref=False))
    stats = record(process, steppers=(Outermost(endless),), max_frames=3).stats

    assert stats.stacks == {StopReason.MAX_FRAMES: 8}
    assert stats.frames == {Found.CONTEXT: 8, Found.SFRAME: 16}
    assert not stats.problems


def test_a_trampoline_seen_for_the_first_time_costs_a_second_capture(process):
    process.learns = [True]
    stats = record(process, duration=TICK).stats

    assert (len(process.captured), stats.pauses.count, stats.samples) == (2, 2, 1)
    assert stats.captures == {Capture.STOPPED: 1}  # how the sample was had


def test_statistics_of_pauses_and_problems_of_the_target(process):
    process.opener.problems.append("/bin/x: replaced on disk")
    stats = record(process).stats

    assert (stats.pauses.count, stats.pauses.max) == (8, 61_000)
    assert stats.problems == {"/bin/x: replaced on disk": 1}
    assert stats.sampler_max_rss_bytes > 0


def test_the_maps_are_read_again_once_a_second(clock, process):
    record(process, duration=3.0)

    assert 1 + 2 <= process.maps_read <= 1 + 4


# -- the time that samples stand for


def test_a_sample_stands_for_the_time_since_the_tick_before(process):
    process.costs = {2: 3.25 * TICK}
    profile = record(process, timeline=True)
    [key] = profile.counts
    tick_ns = round(TICK * 1e9)

    assert list(profile.timeline.at_ns) == [tick * tick_ns for tick in (0, 1)] + [
        round(tick * tick_ns) for tick in (4.25, 5, 6, 7)
    ]
    assert profile.timeline.keys == [key]
    assert profile.wall_ns[key] == sum(profile.timeline.wall_ns) == 7 * tick_ns
    assert profile.started_ns > 0


def test_without_being_asked_no_timeline_is_kept(process):
    assert record(process).timeline is None


# -- threads that sleep


STILL = SchedulerEvidence(b"0 0 7", b"0 0 7")


def reading(tid: int, registers: dict[int, int], number: int = 232) -> SleepingThread:
    snapshot = ThreadSnapshot(tid, registers, BytesMemory(STACK, bytes(16)), bounded=False, stop_ns=0,
                              eintr=False, capture=Capture.READ, scheduler=STILL)  # fmt: skip
    return SleepingThread(snapshot, SyscallInfo(number, (), STACK, CODE), STILL.after)


class AsleepTheSecondTime(FakeProcess):
    """Runs when it is looked at first, and sleeps from then on."""

    def capture(self, thread, patience_ns, stop_filter=ANY_THREAD):
        if stop_filter.awake and self.captured:
            return NotCaptured(Reason.OFF_CPU, "it sleeps", STILL.after, RunState.ASLEEP)
        return super().capture(thread, patience_ns)


@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_a_thread_that_has_gone_to_sleep_before_its_second_capture_is_read(clock, mode):
    process = AsleepTheSecondTime(clock)
    process.learns, process.readings = [True], {PID: reading(PID, {16: CODE, 7: STACK})}
    stats = record(process, mode=mode, duration=TICK).stats

    assert (len(process.captured), stats.pauses.count, stats.samples) == (1, 1, 1)
    assert stats.captures == {Capture.READ: 1}


class RunsForAnInstant(FakeProcess):
    """Runs when its state is asked for, and goes back to sleep after `asked` questions where it stands."""

    asked = 3

    def asleep(self, tid):
        self.asked -= 1
        self.states[101] = "R" if self.asked > 0 else "S"
        return super().asleep(tid)

    def capture(self, thread, patience_ns, stop_filter=None):
        self.asked, self.states[101] = 0, "S"
        return super().capture(thread, patience_ns, stop_filter)


@pytest.mark.parametrize(
    ("restarts", "asked", "ran_ns", "stops"),
    [
        (False, 3, 0, 0),
        (False, ENDLESS, 0, 1),  # longer than we wait for it
        (True, 3, 0, 1),
        (False, 3, round(TICK * 1e9 / 50), 1),  # it often runs: that must be seen
    ],
)
def test_a_thread_that_runs_for_an_instant_may_go_back_to_a_sleep_that_stops_disturb(
    clock, restarts, asked, ran_ns, stops
):
    process = RunsForAnInstant(clock, (PID, "S"), (101, "S"))
    process.restarts = lambda asleep: restarts and asleep.number == 232
    process.readings = {tid: reading(tid, {16: CODE, 7: STACK}) for tid in (PID, 101)}
    process.still = {PID: 7, 101: 7}

    def wakes_up():
        if clock.now() >= START + 3 * TICK and 101 in process.still:
            process.still, process.ran_ns = {PID: 7}, {101: ran_ns}
            process.states[101], process.asked = "R", asked
        return False

    max_pause = 0.005 if asked == ENDLESS else 60.0  # in real time, of which a busy machine takes any amount
    stats = record(process, mode="wall", should_stop=wakes_up, duration=5 * TICK, max_pause=max_pause).stats

    assert (len(process.captured), stats.captures[Capture.STOPPED]) == (stops, stops)
    assert stats.samples == 10


def test_a_stop_counts_also_when_the_look_has_failed_after_it(clock):
    class EndsTheSecondTime(FakeProcess):
        def capture(self, thread, patience_ns, stop_filter=None):
            if self.captured:
                return NotCaptured(Reason.TIMEOUT, "too late")
            return super().capture(thread, patience_ns, stop_filter)._replace(eintr=True)

    process = EndsTheSecondTime(clock)
    process.learns = [True]
    stats = record(process, duration=TICK).stats

    assert (stats.pauses.count, stats.eintr_prone_stops) == (1, 1)
    assert stats.captures == {Capture.FAILED: 1}


def test_a_thread_that_sleeps_is_read_and_not_stopped(clock):
    process = FakeProcess(clock, (PID, "S"), (101, "D"))
    process.readings = {tid: reading(tid, {16: CODE, 7: STACK}) for tid in (PID, 101)}
    stats = record(process, mode="wall").stats

    assert process.captured == []
    assert stats.captures == {Capture.READ: 16}
    assert (stats.samples, stats.pauses.count, stats.stacks) == (16, 0, {StopReason.OUTERMOST: 16})


def test_a_thread_that_goes_to_sleep_before_it_is_stopped_is_read(process):
    process.answers[PID] = NotCaptured(Reason.OFF_CPU, "it sleeps", b"5 0 1", RunState.ASLEEP)
    process.readings[PID] = reading(PID, {16: CODE, 7: STACK})
    stats = record(process, mode="wall").stats

    assert (stats.captures, stats.pauses.count) == ({Capture.READ: 8}, 0)


@pytest.mark.parametrize(("state", "restarts", "stops"), [("S", True, 1), ("S", False, 0), ("D", True, 0)])
def test_it_is_stopped_once_for_a_register_and_only_where_it_does_not_notice(clock, state, restarts, stops):
    needs_rbx = UnwindRow(Rule(3, 8, deref=False), Rule(CFA, -8, deref=True))
    process = FakeProcess(clock, (PID, state))
    process.readings = {PID: reading(PID, {16: CODE, 7: STACK})}
    process.restarts = lambda asleep: asleep.number == 232 and restarts
    stats = record(process, mode="wall", steppers=(Outermost(needs_rbx),)).stats

    assert len(process.captured) == stats.captures[Capture.STOPPED] == stops
    assert stats.captures[Capture.READ] == 8 - stops
    assert stats.samples == 8


def test_a_thread_that_has_not_run_is_counted_again_without_a_look(clock):
    process = FakeProcess(clock, (PID, "S"))
    process.readings = {PID: reading(PID, {16: CODE, 7: STACK})}
    process.still = {PID: 7}
    profile = record(process, mode="wall")

    assert profile.stats.captures == {Capture.READ: 1, Capture.REUSED: 7}
    assert list(profile.counts.values()) == [profile.stats.samples] == [8]
    assert sum(profile.wall_ns.values()) == round(7 * TICK * 1e9)


def test_what_is_put_off_counts_as_if_it_were_told_at_once():
    """One thread never runs, one does after a while, one ends."""

    def recorded(*, timeline):
        clock = FakeClock()
        process = FakeProcess(clock, (PID, "S"), (101, "S"), (102, "S"))
        process.readings = {tid: reading(tid, {16: CODE, 7: STACK}) for tid in process.states}
        process.still = dict.fromkeys(process.states, 7)

        def goes_on():
            if 1.3 <= clock.now() - START < 1.6:
                process.still.pop(101, None)
            elif clock.now() - START >= 1.6:
                process.still[101] = 7
            if clock.now() - START >= 2.7:
                process.states.pop(102, None)
            return False

        profile = record(process, mode="wall", duration=4.4, should_stop=goes_on, timeline=timeline)
        told = (profile.counts, profile.wall_ns, profile.cpu_ns)
        return profile.stats, [{key.tid: number for key, number in counts.items()} for counts in told]

    (stats, told), (stats_at_once, told_at_once) = recorded(timeline=False), recorded(timeline=True)
    assert told == told_at_once
    assert set(told[0]) == {PID, 101, 102}
    assert stats.captures == stats_at_once.captures
    assert stats.captures[Capture.REUSED] > 60
    assert stats.frames == stats_at_once.frames


def test_while_all_threads_sleep_nothing_is_asked_but_whether_they_ran(clock):
    """Every second is; and when one has run, whom it has given birth to is seen at that tick."""
    process = FakeProcess(clock, (PID, "S"), (101, "S"))
    process.readings = {tid: reading(tid, {16: CODE, 7: STACK}) for tid in (PID, 101, 102)}
    process.still = dict.fromkeys(process.readings, 7)
    listed: list[float] = []

    def tids(**_):
        listed.append((clock.now() - START) / TICK)
        return sorted(process.states)

    process.tids = tids

    def gives_birth():
        if clock.now() - START >= 20 * TICK and 102 not in process.states:
            process.states[102] = "S"
            process.still[101] = 8
            process.readings[101] = process.readings[101]._replace(
                snapshot=process.readings[101].snapshot._replace(
                    scheduler=SchedulerEvidence(b"0 0 8", b"0 0 8")
                )
            )
        return False

    profile = record(process, mode="wall", duration=28 * TICK, should_stop=gives_birth)

    assert listed == [0, 8, 16, 21, 24]
    assert {key.tid: count for key, count in profile.counts.items()} == {PID: 28, 101: 28, 102: 7}


@pytest.mark.parametrize("ended", ["Z", "gone"])
def test_a_process_of_which_one_thread_has_ended_is_not_taken_for_asleep(clock, ended):
    process = FakeProcess(clock, (PID, "S"), (101, "S"))
    process.readings = {tid: reading(tid, {16: CODE, 7: STACK}) for tid in (PID, 101)}
    process.still = dict.fromkeys(process.readings, 7)

    def ends():
        if clock.now() - START >= 5 * TICK:
            if ended == "Z":
                process.states[101] = "Z"
                process.still[101] = 9
            else:
                process.states.pop(101, None)
                process.still[101] = 9
        return False

    profile = record(process, mode="wall", duration=12 * TICK, should_stop=ends)

    assert {key.tid: count for key, count in profile.counts.items()} == {PID: 12, 101: 6}


def test_what_is_seen_again_and_again_is_told_more_and_more_seldom_until_the_thread_runs(clock, monkeypatch):
    process = FakeProcess(clock, (PID, "S"))
    process.readings[PID] = reading(PID, {16: CODE, 7: STACK})
    process.still = {PID: 7}
    told: list[int] = []
    add = Profile.add
    monkeypatch.setattr(Profile, "add", lambda *words, **more: told.append(round(clock.now() - START)) or
                        add(*words, **more))  # fmt: skip

    def runs_for_a_tick():
        process.still[PID] = 8 if 30 <= clock.now() - START < 30 + TICK else 7
        return False

    stats = record(process, mode="wall", duration=36.0, should_stop=runs_for_a_tick).stats

    assert told == [0, 1, 3, 7, 15, 23, 30, 30, 31, 33, 36]
    assert stats.samples == stats.ticks == 36 * RATE


def test_a_thread_that_has_not_run_does_not_count_in_cpu_mode(clock):
    process = FakeProcess(clock, (PID, "R"))
    process.still = {PID: 7}
    process.answers[PID] = ThreadSnapshot(
        PID, {16: CODE, 7: STACK}, BytesMemory(STACK, bytes(16)), bounded=False, stop_ns=1, eintr=False,
        scheduler=STILL,
    )  # fmt: skip
    stats = record(process).stats

    assert len(process.captured) == stats.samples == 1  # when it was seen first; it waits for a processor


# -- who has the processor


@pytest.mark.parametrize("runnable", [True, False])
def test_a_thread_that_waits_for_a_processor_is_not_stopped_in_cpu_mode(process, runnable):
    process.answers[PID] = NotCaptured(
        Reason.OFF_CPU, "it has none", b"5 0 1", RunState.WAITING if runnable else RunState.ASLEEP
    )
    stats = record(process).stats

    assert (stats.samples, stats.pauses.count, stats.off_processor) == (0, 0, 8 * runnable)


def test_a_thread_without_processor_is_no_sample_in_cpu_mode(process):
    memory = BytesMemory(STACK, bytes(16))
    process.answers[PID] = ThreadSnapshot(
        PID, {16: CODE, 7: STACK}, memory, bounded=False, stop_ns=1, eintr=False,
        scheduler=SchedulerEvidence(b"1 1 1", b"1 1 3"),
    )  # fmt: skip
    stats = record(process).stats

    assert (stats.samples, stats.pauses.count, stats.off_processor) == (0, 8, 8)


def test_cpu_time_is_told_once(process):
    process.ran_ns[PID] = 0

    def more() -> bool:
        process.ran_ns[PID] += 1000
        return False

    profile = record(process, should_stop=more)
    stats = profile.stats

    assert stats.cpu_charged_ns == process.ran_ns[PID] - 1000  # what it had used before is not ours
    assert sum(profile.cpu_ns.values()) == stats.cpu_sampled_ns
    assert 0 <= stats.cpu_charged_ns - stats.cpu_sampled_ns <= 3000  # since the last sample


def test_a_thread_that_stops_late_is_not_held_until_all_others_were_looked_at(clock, monkeypatch):
    monkeypatch.setattr(watched, "_COLLECT_NS", 0)
    process = FakeProcess(clock, *[(tid, "R") for tid in range(100, 140)])
    process.answers[100] = NotCaptured(Reason.PENDING, "waits for a CPU")

    process.collect_stopped = lambda: process.captured and process.answers.clear()
    process.has_stopped = lambda thread: thread.tid not in process.answers
    stats = record(process, duration=TICK).stats

    assert [tid for tid, _ in process.captured] == [100, *range(100, 140)]
    assert stats.samples == 40


def test_who_stops_later_than_a_pause_may_last_is_let_go_when_it_does(clock):
    """Not up to a millisecond later, as the sleep until the next tick ends with the stop."""
    process = FakeProcess(clock)
    process.answers[PID] = NotCaptured(Reason.PENDING, "waits for a CPU")
    stops_at = START + TICK / 3

    def await_stop(seconds):
        clock.time = min(stops_at, clock.time + seconds) if clock.time < stops_at else clock.time + seconds

    process.await_stop = await_stop
    process.has_stopped = lambda _: clock.time >= stops_at and process.answers.pop(PID, None) is not None
    process.release_pending = lambda: PID not in process.answers
    record(process, duration=3 * TICK, max_pause=TICK / 1000)

    assert [at for _, at in process.captured] == [START, stops_at, START + TICK, START + 2 * TICK]


@pytest.mark.parametrize("changes", [False, True])
def test_what_was_captured_since_the_last_look_is_believed_unless_a_library_has_come_or_gone(clock, changes):
    """That they were in their places was made sure before it was asked, not just before it was captured."""
    process, size = FakeProcess(clock), 8192
    process.modules = ModuleMap(
        lambda: (Mapping(CODE, CODE + size, True, True, 0x1000, "08:01", 7, "/bin/x", False),),
        process.modules._open_image,
    )
    looker = ThreadCapturer(process, Unwinder(process.modules, steppers=(Outermost(),)))
    assert process.modules.find(CODE)
    size = 4096
    process.modules.refresh()
    assert process.modules.find(CODE) in process.modules.unstable_modules
    process.answers[PID] = NotCaptured(Reason.PENDING, "waits for a CPU")
    assert looker.capture(process.thread(PID), "R").pending

    if changes:
        size = 8192
        process.modules.refresh()
    process.answers[PID] = ThreadSnapshot(
        PID, {16: CODE, 7: STACK}, BytesMemory(STACK, bytes(16)), bounded=False, stop_ns=61_000, eintr=False,
        scheduler=SchedulerEvidence(b"5 7 1", b"6 8 2", stopped_ns=1),
    )  # fmt: skip
    look = looker.capture(process.thread(PID), "R")

    assert isinstance(look, NotCaptured) == changes


def test_who_waits_for_long_is_not_looked_after_more_and_more_often(clock):
    process = FakeProcess(clock)
    process.answers[PID] = NotCaptured(Reason.PENDING, "waits for a CPU")
    process.has_stopped = lambda _: False
    process.release_pending = lambda: False
    process.await_stop = clock.sleep
    caught = Counter()
    process.collect_stopped = lambda: caught.update([round((clock.now() - START) / TICK * 4) // 4])
    record(process, duration=20 * TICK, max_pause=TICK / 1000)

    assert caught[18] < 2 * caught[2]  # in a tick; it was nine times as often


def test_few_are_asked_to_stop_at_a_time_and_those_that_were_not_are_first_in_the_next_tick(clock):
    """If all did at once, the last would stand until the others were captured."""
    tids = range(100, 120)
    process = FakeProcess(clock, *[(tid, "R") for tid in tids])
    asked, most = set(), 0

    def capture(tid, *arguments):
        nonlocal most
        if tid in asked:
            asked.remove(tid)
            return FakeProcess.capture(process, tid, *arguments)
        asked.add(tid)
        most = max(most, len(asked))
        return NotCaptured(Reason.PENDING, "waits for a CPU")

    process.capture = capture
    process.has_stopped = lambda _: (
        clock.now() % (TICK / 4) > TICK / 8
    )  # not in the tick in which it was asked
    process.await_stop = clock.sleep
    profile = record(process, mode="wall", max_pause=TICK / 1000)

    assert most == 8
    counts = {key.tid: n for key, n in profile.counts.items()}
    assert counts.keys() == {*tids}
    assert max(counts.values()) - min(counts.values()) <= 3

    asked.clear()
    process.has_stopped = lambda _: False
    stats = record(process, mode="wall", duration=TICK, max_pause=TICK / 1000).stats

    assert (stats.samples, stats.captures[Capture.FAILED]) == (0, 20)
    assert stats.problems["not captured: the recording ended before its turn"] == 12


@pytest.mark.parametrize("ends", ["duration", "signal"])
@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_a_tick_over_many_threads_ends_when_the_time_is_over_or_somebody_says_so(
    clock, monkeypatch, mode, ends
):
    monkeypatch.setattr(watched, "_COLLECT_NS", 0)
    process = FakeProcess(clock, *[(tid, "R") for tid in range(100, 110)])
    process.costs = dict.fromkeys(range(1, 11), 0.3 * TICK)
    when = {"duration": lambda: False, "signal": lambda: len(process.captured) == 4}[ends]
    stats = record(process, mode=mode, duration=TICK if ends == "duration" else None, should_stop=when).stats

    assert [tid for tid, _ in process.captured] == [100, 101, 102, 103]
    assert (stats.ended_by, stats.samples) == (ends, 4)
    assert stats.captures[Capture.FAILED] == (6 if mode == "wall" else 0)
    assert dict(stats.problems) == (
        {"not captured: the recording ended before its turn": 6} if mode == "wall" else {})  # fmt: skip


def test_what_should_stop_says_once_holds_wherever_it_was_heard(clock, monkeypatch):
    monkeypatch.setattr(watched, "_COLLECT_NS", 0)
    process = FakeProcess(clock, *[(tid, "R") for tid in range(100, 110)])
    said = []

    def once() -> bool:
        said.append(len(process.captured) >= 4 and True not in said)
        return said[-1]

    stats = record(process, duration=None, should_stop=once).stats

    assert (stats.ended_by, stats.samples) == ("signal", 4)


@pytest.mark.parametrize(("seen", "charged"), [([50, 80], 30), ([50, None], 7), ([50, 55], 7), ([], 7)])
def test_the_cpu_time_of_threads_that_came_and_went_is_charged(process, seen, charged):
    """A thread that was seen has used 7 ns; the process, since the first tick, as many as the kernel says."""
    process.ran_ns = {PID: 10}
    process.cpu = seen

    def another() -> bool:
        process.ran_ns[PID] = 10 if len(process.captured) < 2 else 17
        return False

    assert record(process, duration=4 * TICK, should_stop=another).stats.cpu_charged_ns == charged


def test_cpu_time_before_an_exec_is_not_charged_again(process):
    """Which program it has is told by the kernel, or not; the first thread keeps its id and its counters."""
    programs = iter([(1, 1, 5), (1, 1, 5), (1, 1, 9), (1, 1, 0), (1, 1, 9)])
    process.ran_ns = {PID: 10}

    def thread_stat(tid):
        return Stat("x", "R", 0, 5, next(programs, (1, 1, 9)) if len(process.captured) < 5 else (1, 1, 9))

    process.proc.thread_stat = thread_stat

    def another() -> bool:
        process.ran_ns[PID] = 10 + len(process.captured)
        return False

    stats = record(process, should_stop=another).stats
    assert (stats.samples, stats.cpu_charged_ns) == (8, 8)


def test_an_id_that_was_given_to_another_thread_is_charged_anew(process):
    process.ran_ns[PID] = 5000

    def another() -> bool:
        process.ran_ns[PID] = 300 if len(process.captured) >= 4 else 5000
        return False

    stats = record(process, should_stop=another).stats

    assert stats.cpu_charged_ns == 300


def test_what_was_seen_of_a_thread_keeps_its_name_when_its_id_is_given_to_another(process):
    def told(_tid):
        return Stat("alpha", "R", 0, 5) if len(process.captured) < 4 else Stat("beta", "R", 0, 9)

    process.proc.thread_stat = told
    profile = record(process)

    names = {profile.threads[key.thread]: count for key, count in profile.counts.items()}
    assert names == {"alpha": 4, "beta": 4}


def test_an_id_of_a_thread_that_has_ended_can_be_given_away(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.still[101] = 7

    def another() -> bool:
        seen = len(process.ticks())
        process.states[101] = "Z" if 4 <= seen < 8 else "R"
        process.still[101] = 7 + seen // 4
        return False

    record(process, should_stop=another, mode="wall")

    ended = [at for tid, at in process.captured if tid == 101]
    assert max(ended) > START + 0.75


def test_an_id_may_be_given_away_when_its_end_has_just_been_seen(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "S"))
    process.still[101] = 7
    process.readings[101] = reading(101, {16: CODE, 7: STACK})

    def thread_stat(tid):
        if tid == 101 and process.still[101] == 8:
            process.still[101] = 9  # the next one has it, and sleeps
            process.readings[101] = process.readings[101]._replace(
                snapshot=process.readings[101].snapshot._replace(
                    scheduler=SchedulerEvidence(b"0 0 9", b"0 0 9")
                )
            )
            return Stat("old", "Z", 0, 5)
        return Stat(
            "new" if process.still[101] == 9 else "old", process.states[tid], 0, 5 + process.still[101]
        )

    def ends():
        if clock.now() - START >= 4 * TICK and process.still[101] == 7:
            process.still[101] = 8
        return False

    process.proc.thread_stat = thread_stat
    profile = record(process, mode="wall", duration=12 * TICK, should_stop=ends)

    counts = {profile.threads[key.thread]: n for key, n in profile.counts.items() if key.tid == 101}
    assert counts == {"old": 5, "new": 6}


def test_who_was_given_the_id_while_it_was_looked_at_has_its_own_name(process):
    names = ["alpha", "beta"]

    def told(_tid):
        return Stat(names[process.holders.get(PID, 0)], "R", 0, 5 + process.holders.get(PID, 0))

    def capture(*arguments):
        if len(process.captured) == 3:  # between the question for its name and the stop
            process.holders[PID] = 1
        return FakeProcess.capture(process, *arguments)

    process.proc.thread_stat, process.capture = told, capture
    profile = record(process)

    counts = {profile.threads[key.thread]: count for key, count in profile.counts.items()}
    assert counts == {"alpha": 3, "beta": 4}
    assert profile.stats.pauses.count == 8


# -- descendants


class FakeFamily:
    """Gives birth at the ticks that are said."""

    def __init__(self, **born) -> None:
        self.born_at = {int(at[1:]): children for at, children in born.items()}
        self.asked = -1  # once before the first tick
        self.closed = False
        self.left = []

    @property
    def waiting(self):
        return len(self.left)

    def open_new(self, *, force):  # noqa: ARG002 - the protocol
        self.asked += 1
        self.left += self.born_at.get(self.asked, [])
        while self.left:
            yield self.left.pop(0)

    def close(self):
        self.closed = True


class Child(FakeProcess):
    closed = False

    def close(self):
        self.closed = True


def record_family(process, family, **options):
    chosen = {"rate": RATE, "duration": 1.0, "steppers": (Outermost(),), **options}
    duration = chosen.pop("duration")
    return PtraceSampler(
        [process], RecordOptions(**chosen), duration, process.clock, jitter=lambda: 0, descendants=family
    ).run()


def test_a_descendant_counts_from_its_birth_and_is_closed_at_its_end(process, clock):
    child = Child(clock, pid=200)
    child.ran_ns[200] = 5000  # all of it since it was born
    child.ends_at = START + 5.5 * TICK
    family = FakeFamily(t4=[child])
    profile = record_family(process, family)

    assert child.ticks() == [3, 4, 5]
    wall = sum(ns for key, ns in profile.wall_ns.items() if key.pid == 200)
    assert wall == 3 * TICK * 1e9  # from the tick before it was seen
    assert sum(ns for key, ns in profile.cpu_ns.items() if key.pid == 200) == 5000
    assert child.closed
    assert family.closed
    assert profile.stats.subprocesses.watched == 1
    assert profile.stats.ticks == 8


def test_who_is_watched_already_has_a_turn_before_very_many_new_ones(process, clock, monkeypatch):
    monkeypatch.setattr("sfsample.recording.ptrace_sampler._OPEN_FIRST_S", 0)
    monkeypatch.setattr("sfsample.recording.ptrace_sampler._OPEN_LATER_S", 0)  # for one at a time
    children = [Child(clock, pid=200 + number) for number in range(12)]
    profile = record_family(process, FakeFamily(t0=children))

    assert process.ticks() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert [child.ticks()[0] for child in children[:9]] == [0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert profile.stats.subprocesses.watched == 9
    assert profile.stats.problems == {"subprocess not recorded: the recording ended before its turn": 3}


def test_a_descendant_that_lives_is_closed_and_does_not_keep_the_recording_alive(process, clock):
    child = Child(clock, pid=200)
    process.ends_at = START + 2.5 * TICK
    profile = record_family(process, FakeFamily(t0=[child]), duration=None)

    assert profile.stats.ended_by == "target"
    assert {key.pid for key in profile.counts} == {PID, 200}
    assert child.closed


def test_descendants_that_cannot_be_looked_at_are_counted(process, clock):
    child = Child(clock, pid=200)
    child.answers[200] = NotPermitted(200, "not permitted to trace: 200", "why")
    born = [NoSuchProcess(201, "no such process: 201"), NotPermitted(202, "not permitted: 202"), child]
    stats = record_family(process, FakeFamily(t0=born)).stats

    assert stats.subprocesses.as_json() == {"watched": 1, "short_lived": 1, "refused": 1}
    assert stats.problems == {
        "subprocess not recorded: not permitted: 202": 1,
        "not captured: not permitted to trace: 200 (why)": 8,
    }
    assert (stats.samples, stats.captures[Capture.FAILED]) == (8, 8)


def test_nothing_is_kept_for_a_descendant_without_samples(process, clock):
    child = Child(clock, (200, "S"), pid=200)
    profile = record_family(process, FakeFamily(t0=[child]))

    assert profile.roots.keys() == profile.processes.keys() == {PID}


# -- limits


def test_ticks_are_left_out_above_the_limit_of_overhead(process):
    memory = BytesMemory(STACK, bytes(16))
    process.answers[PID] = ThreadSnapshot(
        PID, {16: CODE, 7: STACK}, memory, bounded=False, stop_ns=round(TICK * 1e9), eintr=False
    )
    stats = record(process, max_overhead=0.5, duration=10.0).stats

    assert stats.spared_ticks + stats.samples == stats.ticks == 80
    assert stats.pauses.total / 1e9 <= 0.5 * 10.0 + TICK
    assert stats.samples >= 30


@pytest.mark.parametrize(
    ("waited", "kept", "held", "spared"),
    [
        (60_900_000, (40_000, 61_000_000), 100_000, False),
        (0, (40_000, 61_000_000), 61_000_000, True),
        (62_000_000, (40_000, 61_000_000), 40_000, False),  # it had waited before it was asked to stop
        (0, (40_000, 90_000), 90_000, False),  # just before it was seen not to stand
    ],
)
def test_a_thread_that_waits_for_a_processor_is_not_stopped_by_us_yet(clock, waited, kept, held, spared):
    """Each pause of 61 ms was a wait, but for little, or it was not."""
    process = FakeProcess(clock)
    process.answers[PID] = ThreadSnapshot(
        PID, {16: CODE, 7: STACK}, BytesMemory(STACK, bytes(16)), bounded=False, stop_ns=61_000_000,
        eintr=False, scheduler=SchedulerEvidence(b"5 7 1", b"6 %d 2" % (7 + waited), held_ns=kept),
    )  # fmt: skip
    stats = record(process, mode="wall", max_overhead=0.1).stats

    assert bool(stats.spared_ticks) == spared
    assert (stats.pauses.max, stats.held.max) == (61_000_000, held)


def test_lateness_is_told_once_a_second(process):
    process.costs = dict.fromkeys(range(1, 100), 3.5 * TICK)
    told = []
    options = RecordOptions(rate=RATE, steppers=(Outermost(),))
    stats = PtraceSampler([process], options, 4.0, process.clock, jitter=lambda: 0, tell=told.append).run().stats

    assert stats.late_ticks > 10
    assert 2 <= len(told) <= 5
    assert all("ticks missed" in line for line in told)


def test_jitter_moves_a_tick_within_its_interval(process):
    sampler = PtraceSampler(
        [process], RecordOptions(rate=RATE, steppers=(Outermost(),)), 1.0, process.clock, jitter=lambda: 0.5
    )
    sampler.run()

    assert process.ticks() == [k + 0.5 for k in range(8)]
