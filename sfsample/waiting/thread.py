"""Defines the evidence of a wait: a thread and its process, as a dump or a recording has read them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sfsample.core.memory import Memory, PiecewiseMemory
from sfsample.process.facts.descriptors import PeerProcess
from sfsample.process.facts.file_locks import FileLock
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.runtimes.cpython.threads import Gil
from sfsample.runtimes.cpython.waits import PythonFacts
from sfsample.symbolize.named_frame import NamedFrame

# beginnings of the file names of the C library's modules
C_LIBRARIES = ("libc.so", "libc-2.", "libpthread", "ld-linux", "ld-musl", "libresolv", "librt", "[vdso]")
RUNTIME_LIBRARIES = (*C_LIBRARIES, "libstdc++.", "libgcc_s.", "libc++.")  # the same for C and C++
PYTHON_LIBRARIES = (*C_LIBRARIES, "python", "libpython")  # the same for C and CPython


class WaitingThread(NamedTuple):
    """A thread, and the evidence of its wait."""

    tid: int  # thread id in sfsample's pid namespace
    name: str
    state: str  # letter of proc(5)
    ns_tid: int = 0  # thread id in its own pid namespace
    call: DecodedSyscall | None = None
    wchan: str | None = None  # kernel function in which the thread waits
    memory: Memory = PiecewiseMemory()  # copies of the memory around the lock
    gil: Gil | None = None  # GIL that the thread needs to run Python
    facts: PythonFacts = PythonFacts()
    functions: tuple[str, ...] = ()  # bare names of the C library's functions on the stack, innermost first
    in_c_library: bool = False  # True: the innermost frame is in the C library
    idle_s: float | None = None  # seconds since the thread last ran
    asleep: tuple[float, float] | None = None  # begin and end of a sleep, s (monotonic clock); None: unknown


class WaitContext(NamedTuple):
    """Facts about a process that are needed to find the wait of one of its threads."""

    pid: int
    cmdline: Sequence[str]
    threads: Sequence[WaitingThread]
    tids: Mapping[int, int]  # living threads: tid in the process's own pid namespace -> tid in sfsample's
    sleepers: Mapping[int, int]  # futex word -> number of threads that sleep on it
    variable_at: Callable[[int], str | None]  # address -> name of the variable there
    tracer: tuple[int, str] | None = None
    stop_signal: int = 0  # number of the signal that stopped the process; 0: unknown
    children: tuple[tuple[int, str], ...] = ()  # pids and names
    locks: tuple[FileLock, ...] = ()
    peers: tuple[PeerProcess, ...] = ()  # processes at the other ends of pipes and sockets


def slept_together(spans: Sequence[tuple[float, float] | None]) -> bool:
    """Return True if all threads slept at one instant; `spans` has the `asleep` of each thread.

    A dump captures threads one after the other.  Two threads that take turns may seem to be in a deadlock.
    """
    sleeps = [span for span in spans if span is not None]
    return bool(sleeps) and len(sleeps) == len(spans) and max(sleeps)[0] <= min(end for _, end in sleeps)


def gil_state(gil: Gil | None, ns_tid: int, call: DecodedSyscall | None) -> str | None:
    """Return "holds", "waits" or "none" for a thread and its GIL; None: unknown.

    A thread waits for the GIL if it sleeps on a futex of the GIL.
    """
    if gil is None:
        return None
    return "holds" if gil.holder == ns_tid else "waits" if sleeps_on_gil(gil, call) else "none"


def sleeps_on_gil(gil: Gil, call: DecodedSyscall | None) -> bool:
    """Return True if a thread in this system call sleeps on a futex of the GIL."""
    return call is not None and call.name == "futex" and gil.begin <= call.syscall.args[0] < gil.end


def library_functions(frames: Sequence[tuple[NamedFrame, ...]], paths: Sequence[str]) -> Iterator[str]:
    """Yield the bare names of the C library's functions on a stack.  If the program is static, yield all.

    `frames`: the functions of each frame, innermost first.  `paths`: the path of each frame's module, or "".
    """
    static = not any(is_file(path, C_LIBRARIES) for path in paths)
    for names, path in zip(frames, paths, strict=True):
        if static or is_file(path, C_LIBRARIES):
            yield from (bare_symbol(name.raw) for name in names if name.raw)


def bare_symbol(symbol: str) -> str:
    """Return "sem_wait" for "__sem_wait@@GLIBC_2.34" and for "__sem_wait.constprop.0" (a clone by gcc)."""
    return symbol.partition("@")[0].partition(".")[0].lstrip("_")


def is_file(path: str, prefixes: tuple[str, ...]) -> bool:
    """Return True if the name of the file begins with one of `prefixes`."""
    return path.rpartition("/")[2].startswith(prefixes)
