"""Builds sleeping threads as a dump has them, with names of functions."""

from types import SimpleNamespace

from sfsample.core.arch import ByteOrder
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.model import ProcessDump, ThreadDump, ThreadState
from sfsample.modules.module import Module
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.proc_text import SchedStat, SyscallInfo
from sfsample.symbolize.named_frame import NamedFrame

LIBC, PROGRAM = "/lib/libc.so.6", "/usr/bin/app"
WAIT, WAIT_BITSET, LOCK_PI = 0x80, 0x189, 0x86


class _PathModule(Module):
    """A module of which only the path is known."""

    load_bias = 0
    image = SimpleNamespace(segments=(), build_id=None, section=lambda _: None)  # type: ignore[assignment]

    def __init__(self, path: str) -> None:
        self.path = path


def thread(
    *functions: str | None,
    call: DecodedSyscall | None = None,
    memory: Memory | None = None,
    tid: int = 1,
    name: str = "app",
    state: str = "S",
    pid: int = 1,
) -> NamedThread:
    """Return a thread in these functions, innermost first; libc's are before "|", None has no name."""
    split = functions.index("|") if "|" in functions else 0
    paths = [LIBC] * split + [PROGRAM] * (len(functions) - split - ("|" in functions))
    names = [function for function in functions if function != "|"]
    frames = tuple(
        Frame(0x1000 + at, 0x7000 + at, 0x7008 + at, Found.CONTEXT, exact=at == 0) for at in range(len(names))
    )
    named = tuple((NamedFrame(n or "?", n, n, symbol_offset=0 if n else None),) for n in names)
    dump = ThreadDump(
        tid, name, state, Capture.READ, None, None, call.syscall if call else None, None,
        Stack(frames, StopReason.OUTERMOST), tuple(map(_PathModule, paths)), ns_tid=tid, call=call,
        memory=memory or PiecewiseMemory(),
    )  # fmt: skip
    return NamedThread(pid, dump, named)


def futex(word: int, operation: int, value: int, timeout: int = 0) -> DecodedSyscall:
    """Return the system call of a thread that sleeps on a futex word."""
    return DecodedSyscall(
        SyscallInfo(202, (word, operation, value, timeout, 0, 0)), "futex", (hex(word), "wait")
    )


def words(base: int, values: dict[int, int], size: int = 192, *, byteorder: ByteOrder = "little") -> Memory:
    """Return memory with 32-bit words at offsets from `base`."""
    data = bytearray(size)
    for offset, value in values.items():
        data[offset : offset + 4] = value.to_bytes(4, byteorder)
    return BytesMemory(base, bytes(data), byteorder)


def seen(one: NamedThread, first_s: float, last_s: float, runs: tuple[int, int] = (5, 5)) -> NamedThread:
    """Return a thread that was sampled twice, at these times; `runs` is its counter each time."""
    looks = (
        ThreadState(at, one.dump.state, SchedStat(0, 0, count), Capture.READ, one.dump.stack)
        for at, count in zip((first_s, last_s), runs, strict=True)
    )
    return one._replace(dump=one.dump._replace(looks=tuple(looks)))


def process(*threads: NamedThread) -> tuple[ProcessDump, tuple[NamedThread, ...]]:
    """Return the process of these threads."""
    pid = threads[0].pid
    return ProcessDump(pid, "app", ["app"], None, 0.0, tuple(one.dump for one in threads), ()), threads
