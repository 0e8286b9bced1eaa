"""The values of a dump: the diagnosis and the writers use nothing else."""

from collections.abc import Mapping
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.memory import Memory, PiecewiseMemory
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Frame, Stack
from sfsample.modules.module import Module
from sfsample.process.facts.descriptors import Descriptor, FileLock, PeerProcess
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.facts.thread_facts import LastRunTime
from sfsample.process.proc_text import SchedStat, SyscallInfo
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.threads import Gil
from sfsample.runtimes.cpython.waits import PythonFacts
from sfsample.runtimes.go.layout import NO_WAIT, GoWait
from sfsample.runtimes.go.pending_unlocks import Unlock
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.waiting.thread import gil_state

_CLOCK_ERROR_S = 0.1  # seconds; the clocks of two CPUs never differ by as much
_MAX_SYSCALL_BYTES = 4  # length of the instruction that makes a system call


class Call(NamedTuple):
    """A function that runs, native or Python; a later call may have its frame at the same address."""

    frame: int  # address of the Python frame, or CFA of the native frame; 0: unknown
    # Hash of the instruction and of Python variables.  Both change only if the function itself goes on.
    progress: int
    is_python: bool


class ThreadState(NamedTuple):
    """A thread at one of several looks.  `at_s` is monotonic; `stack` is None if the capture failed."""

    at_s: float
    state: str
    usage: SchedStat | None
    capture: Capture
    stack: Stack | None
    calls: tuple[Call, ...] = ()  # calls on the stack, the innermost first


class ThreadDump(NamedTuple):
    """One thread."""

    tid: int
    name: str
    state: str  # letter of the kernel, proc(5): "R" runs, "S" sleeps, ...; "": from a core file
    capture: Capture = Capture.FAILED  # way in which it was captured
    stop_ns: int | None = None  # duration of its stop in ns; None: it was not stopped
    error: str | None = None  # reason why there is no stack
    syscall: SyscallInfo | None = None  # number and arguments of its system call; None: it is in none
    wchan: str | None = None  # kernel function in which it sleeps
    stack: Stack | None = None  # None: the capture failed; `error` has the reason
    modules: tuple[Module | None, ...] = ()  # module of each frame
    ns_tid: int = 0  # thread id in its own pid namespace
    cpu_ns: int | None = None  # CPU time that it has used
    idle_s: float | None = None  # seconds since it last ran
    call: DecodedSyscall | None = None  # `syscall` with its name and descriptors
    kernel_stack: tuple[str, ...] = ()  # kernel functions, innermost first; (): may not be read
    memory: Memory = PiecewiseMemory()  # copies of the memory around the lock that it waits for
    last_ran: LastRunTime | None = None
    looks: tuple[ThreadState, ...] = ()  # its states, oldest first; other fields are of its last capture
    signal: int = 0  # number of the signal it got when its core file was written
    python: PythonStack | None = None  # Python frames; None: it has none
    gil: Gil | None = None  # GIL that it needs to run Python; None: unknown, or there is none
    facts: PythonFacts = PythonFacts()  # facts out of the objects of its Python frames
    born: int = 0  # start time in clock ticks, as its id can be given to another thread

    @property
    def gil_state(self) -> str | None:
        """Its state: it "holds" the GIL, "waits" for it, or does neither ("none"); None: unknown."""
        return gil_state(self.gil, self.ns_tid or self.tid, self.call)

    @property
    def moving(self) -> bool | None:
        """True if it ran between the looks; None: there was only one look, or the kernel does not tell.

        A stop makes a sleeping thread run for an instant: a stopped thread at the same place has not moved.
        """
        if len(self.looks) < 2 or any(look.usage is None for look in self.looks):
            return None
        first, last = self.looks[0], self.looks[-1]
        if any(look.state == "R" for look in self.looks):
            return True
        ran = first.usage != last.usage
        return ran and not (first.capture is Capture.STOPPED and is_same_place(first.stack, last.stack))

    @property
    def asleep(self) -> tuple[float, float] | None:
        """The begin and the end of a time in which it certainly slept (monotonic); None: unknown.

        Its counters prove that between two looks, and `idle_s` after one look, which is less exact.
        """
        if self.capture is Capture.CORE:
            return (0.0, 0.0)  # one instant for all threads
        if self.moving is False:
            return (self.looks[0].at_s, self.looks[-1].at_s)
        if self.idle_s is None or self.last_ran is None or self.idle_s < _CLOCK_ERROR_S:
            return None
        return (self.last_ran.read_at_s - self.idle_s + _CLOCK_ERROR_S, self.last_ran.read_at_s)

    @property
    def busy(self) -> float | None:
        """The share of the time between the first and the last look in which it ran or waited for a CPU."""
        if len(self.looks) < 2:
            return None
        first, last = self.looks[0], self.looks[-1]
        before, after = (u.ran_ns + u.waited_ns if u else 0 for u in (first.usage, last.usage))
        return (after - before) / 1e9 / (last.at_s - first.at_s) if last.at_s > first.at_s else None


class GoroutineMember(NamedTuple):
    """One goroutine of a group."""

    id: int
    since_s: float | None  # time for which it waits, at least; None: unknown
    parent: int  # id of the goroutine that created it; 0: unknown
    created_at: int = 0  # return address in the function that created it; 0: unknown
    wait: GoWait = NO_WAIT
    unlocks: tuple[Unlock, ...] = ()  # its pending deferred Unlock calls


class GoroutineGroup(NamedTuple):
    """Goroutines with the same state and the same stack."""

    members: tuple[GoroutineMember, ...]  # ascending by id
    state: str  # "running", "chan receive", ...: as in Go's own traceback
    tid: int  # thread that runs it, in the target's pid namespace; 0: no thread
    creators: tuple[tuple[Frame, Module | None], ...]  # places at which the members were created
    stack: Stack | None  # None: a thread runs it, or the stack changed while it was read
    modules: tuple[Module | None, ...]  # module of each frame of the stack
    names: tuple[tuple[NamedFrame, ...], ...] = ()  # functions at each frame; (): not named yet
    creator_names: Mapping[int, NamedFrame] = {}  # the key is `GoroutineMember.created_at`

    @property
    def functions(self) -> tuple[NamedFrame, ...]:
        """The named functions of the stack, innermost first, inlined ones too."""
        return tuple(name for names in self.names for name in names)

    def rows(self, depth: int | None) -> list[tuple[Frame, Module | None, tuple[NamedFrame, ...]]]:
        """Return the innermost `depth` frames of the stack (None: all) with module and names."""
        frames = self.stack.frames if self.stack else ()
        return [*zip(frames, self.modules, self.names, strict=False)][:depth]


class GoFacts(NamedTuple):
    """What the goroutines of a process wait for."""

    objects: Mapping[int, bytes] = {}  # copies of channels and locks (`runtimes.go.waits.OBJECT_START`)
    files: Mapping[int, Descriptor] = {}  # descriptors that goroutines wait for, by number
    # ids of the goroutines with locks that have not run between the looks; None: there was one look
    unmoved: frozenset[int] | None = None
    read_ns: int = 0  # CLOCK_MONOTONIC when they were read
    is_whole: bool = False  # True: all goroutines were read


class ProcessDump(NamedTuple):
    """One process, as it was captured; `named(dump)` has names and the verdict."""

    pid: int
    name: str
    cmdline: list[str]
    exe: str | None  # path of its program; None: unknown
    time: float  # seconds since the epoch
    threads: tuple[ThreadDump, ...]
    problems: tuple[str, ...]  # sentences about what could not be read
    children: tuple[tuple[int, str], ...] = ()  # pid and name of each
    locks: tuple[FileLock, ...] = ()  # locks of files that it holds or waits for
    peers: tuple[PeerProcess, ...] = ()  # processes at the other ends of pipes and sockets
    others: tuple[tuple[int, str], ...] = ()  # pid and name of other processes that sentences name
    stop_signal: int = 0  # number of the signal that stopped it; 0: unknown, or it is not stopped
    tracer: tuple[int, str] | None = None  # pid and name of the process that traces it
    ran: tuple[int, ...] | None = None  # threads captured later than all others; None: not --consistent
    followed: bool = False  # True: it was not asked for, but another process waits for it
    goroutines: tuple[GoroutineGroup, ...] = ()  # largest group first
    go: GoFacts = GoFacts()
    root: ProcessRoot | None = None  # root directory in which files with names are opened


def is_same_place(first: Stack | None, last: Stack | None) -> bool:
    """Return True if two stacks are equal, apart from a step back to the instruction of the system call.

    On AArch64 a stopped thread that restarts its call has taken that step; a sleeping one has not.
    """
    if first is None or last is None or not first.frames or not last.frames:
        return first == last
    inner, again = first.frames[0], last.frames[0]
    back = 0 <= again.pc - inner.pc <= _MAX_SYSCALL_BYTES
    return back and last._replace(frames=(again._replace(pc=inner.pc), *last.frames[1:])) == first
