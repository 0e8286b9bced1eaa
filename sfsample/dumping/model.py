"""Defines the values of a dump.  The diagnosis and the writers use only these values."""

from collections.abc import Mapping
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.memory import Memory, PiecewiseMemory
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Frame, Stack
from sfsample.modules.module import Module
from sfsample.process.facts.descriptors import Descriptor, PeerProcess
from sfsample.process.facts.file_locks import FileLock
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

_CLOCK_ERROR_S = 0.1  # seconds; the clocks of two CPUs differ by less than this
_MAX_SYSCALL_BYTES = 4  # length of the longest instruction that makes a system call


class Call(NamedTuple):
    """A call of a native or Python function.  A later call may use the same frame address."""

    frame: int  # address of the Python frame, or CFA of the native frame; 0: unknown
    # Hash of the instruction and of Python variables.  Both change only if the function itself goes on.
    progress: int
    is_python: bool


class ThreadState(NamedTuple):
    """The state of a thread at one look.  A look captures every thread of the process once."""

    at_s: float  # seconds, CLOCK_MONOTONIC
    state: str
    usage: SchedStat | None
    capture: Capture
    stack: Stack | None  # None: the capture failed
    calls: tuple[Call, ...] = ()  # calls on the stack, the innermost first


class ThreadDump(NamedTuple):
    """One thread: its facts, its stack, and its state at each look."""

    tid: int
    name: str
    state: str  # letter of the kernel, proc(5): "R" runs, "S" sleeps, ...; "": from a core file
    capture: Capture = Capture.FAILED  # "stopped", "read", "core" or "failed"
    stop_ns: int | None = None  # duration of the stop in ns; None: the thread was not stopped
    error: str | None = None  # reason why there is no stack
    syscall: SyscallInfo | None = None  # number and arguments of the system call; None: no system call
    wchan: str | None = None  # kernel function in which the thread sleeps
    stack: Stack | None = None  # None: the capture failed; `error` has the reason
    modules: tuple[Module | None, ...] = ()  # module of each frame
    ns_tid: int = 0  # thread id in its own pid namespace
    cpu_ns: int | None = None  # CPU time that the thread has used
    idle_s: float | None = None  # seconds since the thread last ran
    call: DecodedSyscall | None = None  # `syscall` with its name and descriptors
    kernel_stack: tuple[str, ...] = ()  # kernel functions, innermost first; (): sfsample may not read them
    memory: Memory = PiecewiseMemory()  # copies of the memory around the lock that the thread waits for
    last_ran: LastRunTime | None = None
    looks: tuple[ThreadState, ...] = ()  # states, oldest first; other fields come from the last capture
    signal: int = 0  # number of the signal that the thread got when the core file was written
    python: PythonStack | None = None  # Python frames; None: no Python frame
    gil: Gil | None = None  # GIL that the thread needs to run Python; None: unknown, or no GIL
    facts: PythonFacts = PythonFacts()  # facts from the objects in the Python frames
    born: int = 0  # start time in clock ticks; a later thread with the same id has another start time

    @property
    def gil_state(self) -> str | None:
        """The thread's use of the GIL: "holds", "waits" (for the GIL), or "none"; None: unknown."""
        return gil_state(self.gil, self.ns_tid or self.tid, self.call)

    @property
    def moving(self) -> bool | None:
        """True if the thread ran between the looks; None: only one look, or no counters from the kernel.

        A stop makes a sleeping thread run for an instant.  If the stack is unchanged, False is returned.
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
        """Begin and end of a time in which the thread certainly slept (CLOCK_MONOTONIC); None: unknown.

        After two looks, equal counters prove the sleep.  After one look, `idle_s` is a less exact proof.
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
        """The share of the time from first to last look in which the thread ran or waited for a CPU."""
        if len(self.looks) < 2:
            return None
        first, last = self.looks[0], self.looks[-1]
        before, after = (u.ran_ns + u.waited_ns if u else 0 for u in (first.usage, last.usage))
        return (after - before) / 1e9 / (last.at_s - first.at_s) if last.at_s > first.at_s else None


class GoroutineMember(NamedTuple):
    """One goroutine of a group."""

    id: int
    since_s: float | None  # least time for which the goroutine has waited, in seconds; None: unknown
    parent: int  # id of the goroutine that created this goroutine; 0: unknown
    created_at: int = 0  # return address in the function that created the goroutine; 0: unknown
    wait: GoWait = NO_WAIT
    unlocks: tuple[Unlock, ...] = ()  # its pending deferred Unlock calls


class GoroutineGroup(NamedTuple):
    """Goroutines with the same state and the same stack."""

    members: tuple[GoroutineMember, ...]  # ascending by id
    state: str  # "running", "chan receive", ...: words of Go's traceback
    tid: int  # thread that runs the goroutine, in the target's pid namespace; 0: no thread
    creators: tuple[tuple[Frame, Module | None], ...]  # places at which the members were created
    stack: Stack | None  # None: a thread runs the goroutine, or the stack changed during reading
    modules: tuple[Module | None, ...]  # module of each frame of the stack
    names: tuple[tuple[NamedFrame, ...], ...] = ()  # functions at each frame; (): not named yet
    creator_names: Mapping[int, NamedFrame] = {}  # the key is `GoroutineMember.created_at`
    locked_to: int = 0  # thread that alone may run the goroutine; 0: each thread may

    @property
    def functions(self) -> tuple[NamedFrame, ...]:
        """The named functions of the stack with inlined functions, innermost first."""
        return tuple(name for names in self.names for name in names)

    def rows(self, depth: int | None) -> list[tuple[Frame, Module | None, tuple[NamedFrame, ...]]]:
        """Return the innermost `depth` frames of the stack (None: all frames) with module and names."""
        frames = self.stack.frames if self.stack else ()
        return [*zip(frames, self.modules, self.names, strict=False)][:depth]


class GoFacts(NamedTuple):
    """The objects for which the goroutines of a process wait."""

    objects: Mapping[int, bytes] = {}  # copies of channels and locks (`runtimes.go.waits.OBJECT_START`)
    files: Mapping[int, Descriptor] = {}  # descriptors that goroutines wait for, by number
    # ids of the goroutines, with locks or running, that were not resumed between looks; None: only one look
    unmoved: frozenset[int] | None = None
    read_ns: int = 0  # CLOCK_MONOTONIC when the goroutines were read
    is_whole: bool = False  # True: all goroutines were read


class ProcessDump(NamedTuple):
    """One captured process.  `sfsample.named(dump)` adds names and the verdict."""

    pid: int
    name: str
    cmdline: list[str]
    exe: str | None  # path of the program; None: unknown
    time: float  # seconds since the epoch
    threads: tuple[ThreadDump, ...]
    problems: tuple[str, ...]  # sentences about facts that could not be read
    children: tuple[tuple[int, str], ...] = ()  # pid and name of each child
    locks: tuple[FileLock, ...] = ()  # all file locks of /proc/locks for which a process waits
    peers: tuple[PeerProcess, ...] = ()  # processes at the other ends of its pipes and sockets
    others: tuple[tuple[int, str], ...] = ()  # pid and name of other processes that sentences name
    stop_signal: int = 0  # number of the signal that stopped the process; 0: unknown, or not stopped
    tracer: tuple[int, str] | None = None  # pid and name of the process that traces this one
    ran: tuple[int, ...] | None = None  # sleeping threads that ran during the capture; None: not --consistent
    followed: bool = False  # True: the user did not name the process, but a named process waits for it
    goroutines: tuple[GoroutineGroup, ...] = ()  # largest group first
    go: GoFacts = GoFacts()
    root: ProcessRoot | None = None  # root directory of the process, for files with symbols


def is_same_place(first: Stack | None, last: Stack | None) -> bool:
    """Return True if two stacks are equal, or differ only by a step back to the system call's instruction.

    On AArch64, a stop moves the pc back if the system call will restart; reading a thread moves no pc.
    """
    if first is None or last is None or not first.frames or not last.frames:
        return first == last
    inner, again = first.frames[0], last.frames[0]
    back = 0 <= again.pc - inner.pc <= _MAX_SYSCALL_BYTES
    return back and last._replace(frames=(again._replace(pc=inner.pc), *last.frames[1:])) == first
