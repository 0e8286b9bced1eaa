"""Samples that the kernel takes itself: registers and stack of a running thread, in its timer interrupt.

Law: nothing is stopped and nobody is asked; between two looks at the rings nothing of ours runs.  A thread's
timer counts its CPU time only, threads that are born later inherit it, and each sample stands for the CPU
time of one period.  What the kernel has lost is told.  One ring per processor for all threads, because an
event that is inherited cannot have one of its own.  Of two threads that have inherited the same timers, or
of such a one and its parent, the kernel exchanges the timers instead of stopping and starting them; what had
passed of the period then ends with the thread that ends first.  So each thread that we set timers on has an
event that is not inherited, too, and keeps them.

Source: perf_event_open(2); Linux include/uapi/linux/perf_event.h, kernel/events/core.c (perf_mmap,
perf_event_set_output, perf_swevent_start_hrtimer, context_equiv).
"""

import ctypes
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from errno import EACCES, ENODEV, EPERM, ESRCH
from fcntl import ioctl
from mmap import MAP_SHARED, PAGESIZE, PROT_READ, PROT_WRITE, mmap
from operator import attrgetter
from select import POLLIN, poll
from struct import Struct

from sfsample.core.arch import Arch
from sfsample.errors import NO_FILES, NotPermitted, TargetError, UnsupportedTarget
from sfsample.process.perf_records import HEADER, SAMPLE_TYPE, Parser, Record

_SYSCALLS = {62: 298, 183: 241, 22: 331}  # by e_machine; uname(2) says what personality(2) made of it
_SOFTWARE, _TASK_CLOCK, _DUMMY, _MONOTONIC = 1, 1, 9, 1
_OURSELVES = 0  # as a pid
_BITS = {
    "disabled": 0, "inherit": 1, "exclude_hv": 6, "exclude_idle": 7, "mmap": 8, "comm": 9, "watermark": 14,
    "sample_id_all": 18, "exclude_guest": 20, "mmap2": 23, "comm_exec": 24, "use_clockid": 25,
    "inherit_thread": 35,
}  # fmt: skip
# they are bit-fields of a word, which begin at its other end on a big-endian machine
_FLAGS = {name: 1 << (bit if sys.byteorder == "little" else 63 - bit) for name, bit in _BITS.items()}
_ENABLE, _DISABLE, _SET_OUTPUT = 0x2400, 0x2401, 0x2405
_FD_CLOEXEC = 1 << 3
_ANY = -1  # processor
_HEAD, _TAIL = 1024, 1032  # in the first page of a ring: what the kernel has written, what we have read
_WORD = Struct("=Q")
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_libc = ctypes.CDLL(None, use_errno=True)
_at = attrgetter("at_ns")
_FEW = 4096  # events, which take 0.1 s to set
_RINGS_BYTES, _LARGEST, _SMALLEST = 32 << 20, 8 << 20, 128 << 10  # of all processors; of one
_OTHER_FILES = 100  # that we may need beside timers
_TRIED_NS = 10**9  # the period of a timer that is not started
LARGEST_STACK = 60 << 10  # a record's size has 16 bits


class _Attributes(ctypes.Structure):
    """`struct perf_event_attr`, as of PERF_ATTR_SIZE_VER5."""

    _fields_ = (
        ("type", _U32), ("size", _U32), ("config", _U64), ("sample_period", _U64), ("sample_type", _U64),
        ("read_format", _U64), ("flags", _U64), ("wakeup_watermark", _U32), ("bp_type", _U32),
        ("config1", _U64), ("config2", _U64), ("branch_sample_type", _U64), ("sample_regs_user", _U64),
        ("sample_stack_user", _U32), ("clockid", ctypes.c_int32), ("sample_regs_intr", _U64),
        ("aux_watermark", _U32), ("sample_max_stack", ctypes.c_uint16), ("reserved", ctypes.c_uint16),
    )  # fmt: skip


class PerfEvents:
    """Timers of threads, and the rings that they write to; whatever they create has timers, too.

    `begin`, then `read` now and then, then `close`.  Raises OSError where the kernel refuses; a thread that
    has ended is left out.
    """

    def __init__(self, tids: Collection[int], arch: Arch, period_ns: int, stack_bytes: int) -> None:
        self._parser = Parser(arch)
        self._syscall = _SYSCALLS[arch.machine]
        self._rings: dict[int, _Ring] = {}  # by processor
        self._events: list[int] = []
        self._poll = poll()
        self._ahead_ns = _ahead_ns()
        processors = _processors()
        share = min(_RINGS_BYTES // len(processors), _LARGEST)
        self._ring_bytes = max(_SMALLEST, 1 << (share.bit_length() - 1))
        self._attributes = _timer(self._parser, period_ns, stack_bytes)
        self._keeper = _Attributes(
            type=_SOFTWARE, size=ctypes.sizeof(_Attributes), config=_DUMMY, flags=_FLAGS["exclude_hv"]
        )  # fmt: skip
        self._keepers: list[int] = []
        try:
            self._add_rings(processors)
            for tid in tids:
                self._add(tid)
        except BaseException:
            self.close()
            raise

    def _add_rings(self, processors: Iterable[int]) -> None:
        """Make a ring for each processor; smaller ones where not so much memory may be locked for all."""
        while True:
            self._attributes.wakeup_watermark = self._ring_bytes // 2
            try:
                for processor in processors:
                    self._add_ring(processor)
            except PermissionError:
                if self._ring_bytes <= _SMALLEST:
                    raise
                self._ring_bytes //= 2
                self._drop_rings()
            else:
                return

    def _add_ring(self, processor: int) -> None:
        """Make the ring of a processor, by an event of our own thread: it counts nothing, outlives theirs."""
        attributes = _Attributes.from_buffer_copy(self._attributes)
        attributes.config, attributes.sample_period = _DUMMY, 0
        try:
            event = _open(self._syscall, attributes, _OURSELVES, processor)
        except OSError as failure:
            if failure.errno == ENODEV:
                return  # the processor was taken away
            raise
        try:
            self._rings[processor] = _Ring(event, self._ring_bytes)
        except BaseException:
            os.close(event)
            raise
        self._poll.register(event, POLLIN)

    def _add(self, tid: int) -> None:
        try:
            self._keepers.append(_open(self._syscall, self._keeper, tid, _ANY))
            for processor, ring in self._rings.items():
                event = _open(self._syscall, self._attributes, tid, processor)
                self._events.append(event)
                ioctl(event, _SET_OUTPUT, ring.event)
        except OSError as failure:
            if failure.errno != ESRCH:
                raise

    def begin(self) -> None:
        """Start the timers."""
        for event in self._events:
            ioctl(event, _ENABLE, 0)

    def pause(self) -> None:
        """Stop them; `begin` starts them again."""
        for event in self._events:
            ioctl(event, _DISABLE, 0)

    def wait(self, seconds: float) -> bool:
        """Sleep until a ring is half full, but not longer; return whether one is."""
        return any(events & POLLIN for _, events in self._poll.poll(seconds * 1000))

    def read(self) -> list[Record]:
        """Return what was written since the last time, in order of time."""
        parse = self._parser.parse
        # up to where, first: what is written while one is read may be later than what another has by then
        heads = [(ring, ring.head()) for ring in self._rings.values()]
        parsed = (parse(data) for ring, head in heads for data in ring.take(head))
        records: list[Record] = sorted(filter(None, parsed), key=_at)
        if self._ahead_ns:
            records = [one._replace(at_ns=one.at_ns + self._ahead_ns) for one in records]
        return records

    def close(self) -> None:
        """Take the timers away."""
        for event in (*self._events, *self._keepers):
            os.close(event)
        self._keepers.clear()
        self._events.clear()
        self._drop_rings()

    def _drop_rings(self) -> None:
        for ring in self._rings.values():
            self._poll.unregister(ring.event)
            ring.close()
        self._rings.clear()


class _Ring:
    """What one processor writes: `size` bytes, a power of two, behind a page of the kernel's notes."""

    def __init__(self, event: int, size: int) -> None:
        self.event = event
        self._memory = mmap(event, PAGESIZE + size, MAP_SHARED, PROT_READ | PROT_WRITE)
        self._size = size

    def head(self) -> int:
        """Return up to where it is written."""
        return int(_WORD.unpack_from(self._memory, _HEAD)[0])

    def take(self, head: int) -> Iterator[bytes]:
        """Yield the records up to `head` that were not read yet, each whole; its place is then given back."""
        memory, size = self._memory, self._size
        (tail,) = _WORD.unpack_from(memory, _TAIL)
        while tail < head:
            at = tail % size
            _, _, length = HEADER.unpack_from(memory, PAGESIZE + at)  # never divided: all are of 8 bytes
            data = memory[PAGESIZE + at : PAGESIZE + min(at + length, size)]
            if len(data) < length:
                data += memory[PAGESIZE : PAGESIZE + length - len(data)]
            tail += length
            yield data
            _WORD.pack_into(memory, _TAIL, tail)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()
        os.close(self.event)


def _timer(parser: Parser, period_ns: int, stack_bytes: int) -> _Attributes:
    return _Attributes(
        type=_SOFTWARE, size=ctypes.sizeof(_Attributes), config=_TASK_CLOCK, sample_period=period_ns,
        sample_type=SAMPLE_TYPE, flags=sum(_FLAGS.values()), sample_regs_user=parser.mask,
        sample_stack_user=min(stack_bytes, LARGEST_STACK) & -8, clockid=_MONOTONIC,
    )  # fmt: skip


def _open(syscall: int, attributes: _Attributes, tid: int, processor: int) -> int:
    event: int = _libc.syscall(syscall, ctypes.byref(attributes), tid, processor, -1, _FD_CLOEXEC)
    if event < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return event


def may_set(tids: Collection[int], arch: Arch) -> bool:
    """Return whether the kernel lets us set timers on threads, and they are few enough to do it at once."""
    if not tids or len(tids) * (len(_processors()) + 1) > _FEW:
        return False
    try:
        os.close(_open(_SYSCALLS[arch.machine], _timer(Parser(arch), _TRIED_NS, PAGESIZE), min(tids), _ANY))
    except OSError:
        return False
    return True


def open_events(
    pids: Iterable[int], tids: Collection[int], arch: Arch, period_ns: int, stack_bytes: int
) -> PerfEvents:
    """Set timers; a refusal is raised as what can be done about it."""
    try:
        return PerfEvents(tids, arch, period_ns, stack_bytes)
    except OSError as failure:
        raise _refusal(failure, next(iter(pids)), len(tids)) from None


def _refusal(failure: OSError, pid: int, threads: int) -> TargetError:
    if failure.errno in (EACCES, EPERM):
        return NotPermitted(
            pid, f"not permitted to set timers (perf_event_open(2)): {pid}",
            f"kernel.perf_event_paranoid is {_paranoid()}; it takes 1 or less, CAP_PERFMON, or root",
            "a container's seccomp filter may refuse it, too, or no more memory may be locked (ulimit -l);",
            "without --perf-events it is not needed",
        )  # fmt: skip
    if failure.errno in NO_FILES:
        files = (threads + 1) * (len(_processors()) + 1) + _OTHER_FILES
        return UnsupportedTarget(
            pid, f"no files left to open: for the timers of {threads} threads",
            f"allow {files}: ulimit -n, LimitNOFILE= in a systemd unit, --ulimit nofile= in a container",
            "or record without --perf-events",
        )  # fmt: skip
    return UnsupportedTarget(
        pid, f"cannot set timers (perf_event_open(2)): {failure.strerror}",
        "this takes Linux 5.13, with perf events; record without --perf-events",
    )  # fmt: skip


def _paranoid() -> str:
    try:
        with open("/proc/sys/kernel/perf_event_paranoid", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "not there: this kernel has no perf events"


def _ahead_ns() -> int:
    """Return how much later it is on our clock than on the kernel's, which its records tell.

    Source: time_namespaces(7).
    """
    try:
        with open("/proc/self/timens_offsets", encoding="ascii") as file:
            offsets = {clock: (int(seconds), int(rest)) for clock, seconds, rest in map(str.split, file)}
    except OSError:  # no such namespaces
        return 0
    seconds, rest = offsets["monotonic"]
    return seconds * 10**9 + rest


def _processors() -> list[int]:
    """Return the processors that are online; where that is not told, those that may be."""
    try:
        with open("/sys/devices/system/cpu/online", encoding="ascii") as file:
            ranges = [part.partition("-") for part in file.read().strip().split(",")]
    except OSError:
        return [*range(os.cpu_count() or 1)]
    return [one for low, _, high in ranges for one in range(int(low), int(high or low) + 1)]
