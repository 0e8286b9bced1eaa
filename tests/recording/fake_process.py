"""A process and a clock for tests of `PtraceSampler`, without a live target.

The rate is 8 Hz, so that every instant is exact in binary and "late" is exactly what the test says.
"""

from types import SimpleNamespace

from sfsample.core.arch import AMD64
from sfsample.core.filesystem import ProcessRoot
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import Rule
from sfsample.core.snapshot import Capture, SchedulerEvidence, ThreadSnapshot
from sfsample.core.stack import Found
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.process.capture_sleeping import SleepingThread
from sfsample.process.proc_text import Stat, SyscallInfo
from sfsample.process.stop_request import StopRequest
from sfsample.process.thread import Thread
from sfsample.recording.options import RecordOptions
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from sfsample.unwind.row import UnwindRow
from tests.builders.elf_builder import Load, elf

PID, RATE, START = 100, 8.0, 1000.0  # START in s on the fake clock
TICK = 1 / RATE  # s
CODE, STACK = 0x40_1000, 0x7000_0000  # addresses
NOT_RUN = SchedulerEvidence(b"0 0 7", b"0 0 7")  # put on a CPU 7 times, before and after


class FakeClock:
    """Time passes when the sampler sleeps, and where a test adds to `time`."""

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
    """A stepper that has one row for all code; by default it says that there is no caller."""

    found = Found.SFRAME

    def __init__(self, row: UnwindRow | None = None) -> None:
        self.row = row or UnwindRow(Rule(7, 8, deref=False), None)

    def row_at(self, frame, module, arch):  # noqa: ARG002 - the protocol
        return self.row


class FakeThreadFiles:
    """Asks the process, some of whose methods tests replace."""

    def __init__(self, process: "FakeProcess", tid: int) -> None:
        self.process, self.tid = process, tid

    @property
    def holder(self) -> int:
        return self.process.file_holders.get(self.tid, 0)

    def stat(self):
        return self.process.thread_stat(self.tid)

    def counters(self):
        return self.process.counters(self.tid)

    def asleep(self):
        return self.process.asleep(self.tid)


class FakeStopRequest(StopRequest):
    """Asks the process whether the thread has stopped."""

    @property
    def is_pending(self) -> bool:
        return self.thread.files.process.is_pending(self.thread)


class FakeProcess:
    """Threads with a state, what a capture of each gives, and the times of captures on the clock.

    It is also its own `RunningCapture`, `ModuleIdentities` and `StackCopy`.
    """

    def __init__(self, clock: FakeClock, *threads: tuple[int, str], pid: int = PID) -> None:
        self.pid = pid
        self.closed = False
        self.start_time, self.name = 5, "?"
        self.capturer: tuple[object, object] = (), None
        self.clock = clock
        self.states = dict(threads or [(pid, "R")])
        self.captured: list[tuple[int, float]] = []  # thread id, and time on the clock
        self.answers: dict[int, object] = {}  # by thread id: what `capture` returns, or raises
        self.costs: dict[int, float] = {}  # seconds that capture number N takes
        self.ends_at = float("inf")  # when the process ends, on the clock
        self.learned: list[bool] = []  # what `learn` returns: whether to capture again
        self.threads: dict[int, Thread] = {}
        self.running_capture, self.is_active = self, True
        image = ElfImage(elf([Load(0x1000, bytes(4096), offset=0x1000)]), "x")
        self.maps_read = 0
        self.modules = ModuleMap(self._maps, lambda _: image)
        self.opener = SimpleNamespace(problems=[])
        self.root = ProcessRoot(None, pid, 0)
        self.readings: dict[int, SleepingThread] = {}  # by thread id: what `read` returns
        self.cpu_times_ns: list[int | None] = []  # CPU time of the process, for each read
        self.identities = self.copy = self
        self.cut_short = 0
        self.proc = SimpleNamespace(thread=lambda tid: self.thread(tid).files, link=lambda _name: None,
                                    read=lambda _name: None, anchor=lambda: pid,
                                    cpu_ns=lambda: self.cpu_times_ns.pop(0) if self.cpu_times_ns else None,
                                    has_ended=self._has_ended)  # fmt: skip
        self.fixed_times_run: dict[int, int] = {}  # by thread id; other threads run all the time
        self.file_holders: dict[int, int] = {}  # by thread id (`ThreadFiles.holder`)
        self.arch = AMD64
        self.ran_ns: dict[int, int] = {}  # CPU time by thread id
        self.times_run = 100
        self.accounted_ns = None

    def _maps(self):
        self.maps_read += 1
        if self.clock.now() >= self.ends_at:
            return ()
        return (Mapping(CODE, CODE + 4096, True, True, 0x1000, "08:01", 7, "/bin/x", False),)

    def _has_ended(self):
        return self.clock.now() >= self.ends_at or self.states.keys() <= {self.pid}

    def release_pending(self):
        return True

    def collect_stopped(self):
        pass

    def is_pending(self, _thread):
        return False

    def thread(self, tid):
        thread = self.threads.setdefault(tid, Thread(tid, FakeThreadFiles(self, tid)))
        if not isinstance(thread.stop, FakeStopRequest):
            thread.stop = FakeStopRequest(tid, thread)
        return thread

    def own_id(self, tid):
        return tid

    def read(self, thread):
        return self.readings.get(thread.tid)

    def restarts(self, _asleep):
        return True

    def learn(self, _thread, _stack):
        return self.learned.pop() if self.learned else False

    def tids(self, *, force):  # noqa: ARG002 - the protocol
        return sorted(self.states)

    def thread_stat(self, tid):
        if self.clock.now() >= self.ends_at or tid not in self.states:
            return None
        return Stat(f"thread {tid}", self.states[tid], 0, 5)

    def asleep(self, tid):
        return None if self.states[tid] == "R" else SyscallInfo(232, (5, 0, 0, 0, 0, 0), STACK, CODE)

    def counters(self, tid):
        """Return schedstat: at each call the thread has run once more, unless `fixed_times_run` has it."""
        if self.clock.now() >= self.ends_at:
            return None
        if tid not in self.fixed_times_run:
            self.times_run += 1
        return b"%d 0 %d" % (self.ran_ns.get(tid, 0), self.fixed_times_run.get(tid, self.times_run))

    def moved(self, _modules, _without_module):
        return False

    def replaced(self, _tid, _modules):
        return False

    def capture(self, thread, patience_ns, stop_filter=None):  # noqa: ARG002
        tid = thread.tid
        self.captured.append((tid, self.clock.now()))
        self.clock.time += self.costs.get(len(self.captured), 0)
        answer = self.answers.get(tid)
        if isinstance(answer, Exception):
            raise answer
        return stopped(tid) if answer is None else answer

    def close(self) -> None:
        self.closed = True

    def ticks(self) -> list[float]:
        """Return when captures happened, in ticks after the start."""
        return [(at - START) / TICK for _, at in self.captured]


def stopped(
    tid: int = PID, stop_ns: int = 61_000, scheduler: SchedulerEvidence | None = None
) -> ThreadSnapshot:
    """Return what a stop of a thread gives."""
    memory = BytesMemory(STACK, bytes(16))
    return ThreadSnapshot(tid, {16: CODE, 7: STACK}, memory, bounded=False, stop_ns=stop_ns, eintr=False,
                          scheduler=scheduler)  # fmt: skip


def reading(tid: int, times_run: int = 7) -> SleepingThread:
    """Return what reading a sleeping thread gives, which was put on a CPU so many times."""
    counters = b"0 0 %d" % times_run
    snapshot = stopped(tid, 0, SchedulerEvidence(counters, counters))._replace(capture=Capture.READ)
    return SleepingThread(snapshot, SyscallInfo(232, (5, 0, 0, 0, 0, 0), STACK, CODE), counters)


def sampler_of(
    *processes, duration=1.0, jitter=lambda: 0, tell=lambda _: None, descendants=None, **options
) -> PtraceSampler:
    """Return a sampler on the clock of the processes, with `options` of `RecordOptions`."""
    chosen = RecordOptions(**{"rate": RATE, "steppers": (Outermost(),), **options})
    clock = processes[0].clock
    followed = Processes(processes, descendants)
    profile = Profile(chosen.rate, timeline=chosen.timeline)
    return PtraceSampler(Recording(followed, chosen, profile, duration, tell=tell), clock, jitter)


def record(*processes, should_stop=lambda: False, **options) -> Profile:
    """Record processes with the arguments of `sampler_of`."""
    sampler = sampler_of(*processes, **options)
    try:
        return sampler.run(should_stop)
    finally:
        sampler._processes.close(sampler.profile.stats)
