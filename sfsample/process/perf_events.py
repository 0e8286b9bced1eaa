"""Sets kernel timers that sample registers and stack of a running thread in the timer interrupt.

The kernel writes the samples to ring buffers ("rings").  No thread is stopped, and sfsample runs only to read
the rings.  The timer of a thread counts the CPU time of this thread, and each sample represents the CPU time
of one period.  New threads inherit the timer.  An inherited event cannot have its own ring, so all threads on
a CPU write to the ring of this CPU.

Alternatively, one timer per CPU serves the threads of the processes' control group, or of the whole machine.
A timer of a CPU also samples threads that end before a timer of their own would fire.  But timers of CPUs
interrupt all threads of the group, and need more permission.  sfsample drops the records of other processes.

Two threads may have inherited the same timers, or one thread may have inherited the timers of the other.
When the kernel switches between the two threads, it exchanges their timers.  When one of the two threads
ends, the elapsed part of a period is lost.  So each thread on which sfsample sets timers also gets an event
that is not inherited (a "pin").  With the pin, the thread keeps its own timers.

Source: perf_event_open(2); Linux include/uapi/linux/perf_event.h, kernel/events/core.c (perf_mmap,
perf_event_set_output, perf_swevent_start_hrtimer, context_equiv, perf_cgroup_connect).
"""

import ctypes
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from errno import EACCES, EBADF, EINVAL, EPERM, ESRCH
from fcntl import ioctl
from mmap import MAP_SHARED, PAGESIZE, PROT_READ, PROT_WRITE, mmap
from operator import attrgetter
from select import POLLIN, poll
from struct import Struct

from sfsample.core.arch import Arch
from sfsample.errors import NO_FILE_ERRNOS, NotPermitted, TargetError, UnsupportedTarget
from sfsample.process.cgroup import common_cgroup
from sfsample.process.perf_records import HEADER, SAMPLE_TYPE, Family, Parser, Record
from sfsample.process.procfs import read_text
from sfsample.process.vm import libc

_SYSCALLS = {62: 298, 183: 241, 22: 331}  # number of perf_event_open by e_machine
_SOFTWARE, _CPU_CLOCK, _TASK_CLOCK, _DUMMY, _MONOTONIC = 1, 0, 1, 9, 1
_CALLING_THREAD, _ANY_THREAD = 0, -1  # values of the pid argument of perf_event_open
_BITS = {
    "disabled": 0, "inherit": 1, "exclude_hv": 6, "exclude_idle": 7, "mmap": 8, "comm": 9, "watermark": 14,
    "sample_id_all": 18, "exclude_guest": 20, "exclude_callchain_kernel": 21, "exclude_callchain_user": 22,
    "mmap2": 23, "comm_exec": 24, "use_clockid": 25, "inherit_thread": 35,
}  # fmt: skip
# bit-fields of one word; on a big-endian machine, bit 0 is at the other end of the word
_FLAGS = {name: 1 << (bit if sys.byteorder == "little" else 63 - bit) for name, bit in _BITS.items()}
_ENABLE, _DISABLE, _SET_OUTPUT = 0x2400, 0x2401, 0x2405
_FD_CLOEXEC, _PID_IS_CGROUP = 1 << 3, 1 << 2
_ANY_CPU = -1
_HEAD, _TAIL = 1024, 1032  # offsets in a ring's first page: count of bytes written, count of bytes read
_WORD = Struct("=Q")
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64
_time_of = attrgetter("at_ns")
_MAX_QUICK_EVENTS = 4096  # timers that sfsample can set in 0.1 s
_ALL_RINGS_BYTES = 32 << 20
_MAX_RING_BYTES, _MIN_RING_BYTES = 8 << 20, 16 << 10  # size of the ring of one CPU
_FULL_RING_BYTES = 128 << 10  # the smallest ring with space for two of the largest stack copies
_OTHER_FILES = 100  # open files that sfsample may need besides the timers
_NO_EVENTS = "not there: this kernel has no perf events"
_TRIAL_PERIOD_NS = 10**9  # period of a trial timer, which is never started
MAX_SAMPLE_STACK_BYTES = 60 << 10  # below 64 KiB: the size field of a record has 16 bits


class _Attributes(ctypes.Structure):
    """`struct perf_event_attr`, in the version PERF_ATTR_SIZE_VER5."""

    _fields_ = (
        ("type", _U32), ("size", _U32), ("config", _U64), ("sample_period", _U64), ("sample_type", _U64),
        ("read_format", _U64), ("flags", _U64), ("wakeup_watermark", _U32), ("bp_type", _U32),
        ("config1", _U64), ("config2", _U64), ("branch_sample_type", _U64), ("sample_regs_user", _U64),
        ("sample_stack_user", _U32), ("clockid", ctypes.c_int32), ("sample_regs_intr", _U64),
        ("aux_watermark", _U32), ("sample_max_stack", ctypes.c_uint16), ("reserved", ctypes.c_uint16),
    )  # fmt: skip


class _LockedMemoryError(OSError):
    """The user may not lock as much memory as a ring takes (EPERM of mmap(2))."""


class PerfEvents:
    """Timers of threads and of the threads that they create, and the rings for the samples.

    `tids`: threads of the processes `pids`; ended threads are left out.  `subprocesses`: new processes of
    these threads get timers, too.  `per_cpu`: one timer per CPU, for all threads of `pids`.  `kernel`:
    samples also have the kernel's call chain.  Call `begin` first, `read` repeatedly, `close` last.  Raises
    TargetError with help lines if the kernel refuses.
    """

    def __init__(
        self, pids: Sequence[int], tids: Collection[int], arch: Arch, period_ns: int, stack_bytes: int,
        *, subprocesses: bool = False, per_cpu: bool = False, kernel: bool = False,
    ) -> None:  # fmt: skip
        self._parser = Parser(arch)
        self._syscall = _SYSCALLS[arch.machine]
        self._rings: dict[int, _Ring] = {}  # key: CPU
        self._events: list[int] = []
        self.lacks_memory = False  # True: the rings are small, because the user may not lock more memory
        self._poll = poll()
        cpus = _online_cpus()
        share = min(_ALL_RINGS_BYTES // len(cpus), _MAX_RING_BYTES)
        self._ring_bytes = max(_FULL_RING_BYTES, 1 << (share.bit_length() - 1))
        self._attributes = _timer(
            self._parser, period_ns, stack_bytes, subprocesses=subprocesses, per_cpu=per_cpu, kernel=kernel
        )
        self._only = Family(pids, subprocesses=subprocesses) if per_cpu else None
        self._pin = _Attributes(
            type=_SOFTWARE, size=ctypes.sizeof(_Attributes), config=_DUMMY, flags=_FLAGS["exclude_hv"]
        )  # fmt: skip
        self._pins: list[int] = []
        try:
            self._add_rings(cpus)
            if per_cpu:
                self._add_cpus(pids)
            else:
                for tid in tids:
                    self._add(tid)
        except BaseException as failure:
            self.close()
            if isinstance(failure, OSError):
                raise _refusal(failure, pids[0], len(tids), per_cpu=per_cpu) from None
            raise

    def _add_rings(self, cpus: Iterable[int]) -> None:
        """Make a ring for each CPU; if the user may not lock so much memory, make smaller rings.

        A ring must have space for two samples, so smaller rings also need smaller copies of stacks.
        """
        copied = self._attributes.sample_stack_user
        while True:
            self._attributes.wakeup_watermark = self._ring_bytes // 2
            self._attributes.sample_stack_user = min(copied, self._ring_bytes // 2 - PAGESIZE)
            try:
                for cpu in cpus:
                    self._add_ring(cpu)
            except _LockedMemoryError:
                if self._ring_bytes <= _MIN_RING_BYTES:
                    raise
                self._ring_bytes //= 2
                self.lacks_memory = True
                self._drop_rings()
            else:
                return

    def _add_ring(self, cpu: int) -> None:
        """Make the ring of a CPU with an event of sfsample's own thread, which outlives target threads."""
        attributes = _Attributes.from_buffer_copy(self._attributes)
        attributes.config, attributes.sample_period = _DUMMY, 0
        event = _open(self._syscall, attributes, _CALLING_THREAD, cpu)
        try:
            self._rings[cpu] = _Ring(event, self._ring_bytes)
        except BaseException as failure:
            os.close(event)
            if isinstance(failure, PermissionError):
                raise _LockedMemoryError(failure.errno, failure.strerror) from None
            raise
        self._poll.register(event, POLLIN)

    def _add(self, tid: int) -> None:
        try:
            self._pins.append(_open(self._syscall, self._pin, tid, _ANY_CPU))
            self._add_timers(tid)
        except OSError as failure:
            # EACCES, although other timers were set: a process has just executed a setuid program
            if failure.errno != ESRCH and not (failure.errno == EACCES and self._events):
                raise

    def _add_cpus(self, pids: Collection[int]) -> None:
        """Set a timer on each CPU, for the threads of the processes' control group, or for all threads."""
        directory = common_cgroup(pids)
        group = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if directory else None
        try:
            self._add_timers(group or _ANY_THREAD, _PID_IS_CGROUP if group else 0)
        except OSError as failure:
            if group is None or failure.errno not in (EBADF, EINVAL):  # perf may use version 1 of cgroups
                raise
            self._add_timers(_ANY_THREAD)
        finally:
            if group is not None:
                os.close(group)

    def _add_timers(self, whose: int, flags: int = 0) -> None:
        """Set a timer on each CPU; `whose`: thread id, or descriptor of a control group."""
        for cpu, ring in self._rings.items():
            event = _open(self._syscall, self._attributes, whose, cpu, flags)
            self._events.append(event)
            ioctl(event, _SET_OUTPUT, ring.event)

    def begin(self) -> None:
        """Start the timers."""
        for event in self._events:
            ioctl(event, _ENABLE, 0)

    def pause(self) -> None:
        """Stop the timers; `begin` starts them again."""
        for event in self._events:
            ioctl(event, _DISABLE, 0)

    def wait(self, seconds: float) -> bool:
        """Sleep until a ring is half full, for at most `seconds`; True: a ring is half full."""
        return any(events & POLLIN for _, events in self._poll.poll(seconds * 1000))

    def read(self) -> list[Record]:
        """Return the records that the kernel wrote since the last call, in order of time."""
        parse = self._parser.parse
        # all heads first: records that the kernel writes during the parsing wait for the next call
        heads = [(ring, ring.head()) for ring in self._rings.values()]
        parsed = (parse(data) for ring, head in heads for data in ring.take(head))
        records: list[Record] = sorted(filter(None, parsed), key=_time_of)
        return records if self._only is None else list(filter(self._only.has, records))

    def close(self) -> None:
        """Remove the remaining timers and rings; if Ctrl-C interrupts `close`, call `close` again."""
        for events in (self._events, self._pins):
            while events:
                os.close(events.pop())
        self._drop_rings()

    def _drop_rings(self) -> None:
        self._poll = poll()
        while self._rings:
            self._rings.popitem()[1].close()


class _Ring:
    """The ring of one CPU: a page of `struct perf_event_mmap_page`, then `size` (a power of two) bytes."""

    def __init__(self, event: int, size: int) -> None:
        self.event = event
        self._memory = mmap(event, PAGESIZE + size, MAP_SHARED, PROT_READ | PROT_WRITE)
        self._size = size

    def head(self) -> int:
        """Return the total number of bytes that the kernel has written."""
        return int(_WORD.unpack_from(self._memory, _HEAD)[0])

    def take(self, head: int) -> Iterator[bytes]:
        """Yield the unread records up to `head`; then the kernel may reuse their space."""
        memory, size = self._memory, self._size
        (tail,) = _WORD.unpack_from(memory, _TAIL)
        while tail < head:
            at = tail % size
            _, _, length = HEADER.unpack_from(memory, PAGESIZE + at)  # 8 bytes, which never wrap around
            data = memory[PAGESIZE + at : PAGESIZE + min(at + length, size)]
            if len(data) < length:
                data += memory[PAGESIZE : PAGESIZE + length - len(data)]
            tail += length
            yield data
            _WORD.pack_into(memory, _TAIL, tail)

    def close(self) -> None:
        self._memory.close()
        os.close(self.event)


def _timer(
    parser: Parser, period_ns: int, stack_bytes: int, *,
    subprocesses: bool = False, per_cpu: bool = False, kernel: bool = False,
) -> _Attributes:  # fmt: skip
    off = {"exclude_callchain_kernel": kernel, "inherit": per_cpu, "inherit_thread": per_cpu or subprocesses}
    flags = sum(flag for name, flag in _FLAGS.items() if not off.get(name))
    return _Attributes(
        type=_SOFTWARE, size=ctypes.sizeof(_Attributes), config=_CPU_CLOCK if per_cpu else _TASK_CLOCK,
        sample_period=period_ns, sample_type=SAMPLE_TYPE, flags=flags, sample_regs_user=parser.mask,
        sample_stack_user=min(stack_bytes, MAX_SAMPLE_STACK_BYTES) & -8, clockid=_MONOTONIC,
    )  # fmt: skip


def _open(syscall: int, attributes: _Attributes, tid: int, cpu: int, flags: int = 0) -> int:
    event: int = libc.syscall(syscall, ctypes.byref(attributes), tid, cpu, -1, _FD_CLOEXEC | flags)
    if event < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return event


def can_set_timers(tids: Collection[int], arch: Arch) -> bool:
    """Return True if the kernel permits timers, and sfsample can quickly set the timers of all threads."""
    few = len(tids) * (len(_online_cpus()) + 1) <= _MAX_QUICK_EVENTS
    return few and any(_can_open(arch, tid, _ANY_CPU) for tid in tids)


def can_set_cpu_timers(arch: Arch) -> bool:
    """Return True if the kernel permits timers of CPUs."""
    return _can_open(arch, _ANY_THREAD, _online_cpus()[0], per_cpu=True)


def _can_open(arch: Arch, tid: int, cpu: int, *, per_cpu: bool = False) -> bool:
    try:
        timer = _timer(Parser(arch), _TRIAL_PERIOD_NS, PAGESIZE, per_cpu=per_cpu)
        os.close(_open(_SYSCALLS[arch.machine], timer, tid, cpu))
    except OSError:
        return False
    return True


def _refusal(failure: OSError, pid: int, threads: int, *, per_cpu: bool) -> TargetError:
    if isinstance(failure, _LockedMemoryError):
        least_kib = len(_online_cpus()) * (_MIN_RING_BYTES + PAGESIZE) >> 10
        return NotPermitted(
            pid, f"no memory left to lock: the rings of the timers take {least_kib} KiB or more",
            "end other recordings of this user, or allow more: ulimit -l, LimitMEMLOCK= in a systemd unit,",
            "kernel.perf_event_mlock_kb, or CAP_IPC_LOCK; or record without --perf-events",
        )  # fmt: skip
    if failure.errno in (EACCES, EPERM):
        paranoid = read_text("/proc/sys/kernel/perf_event_paranoid").strip() or _NO_EVENTS
        most = 0 if per_cpu else 1
        return NotPermitted(
            pid, f"not permitted to set timers (perf_event_open(2)): {pid}",
            f"kernel.perf_event_paranoid is {paranoid}; timers need {most} or less, CAP_PERFMON, or root",
            "a container's seccomp filter may refuse the call, too; or record without --perf-events",
        )  # fmt: skip
    if failure.errno in NO_FILE_ERRNOS:
        files = (threads + 1) * (len(_online_cpus()) + 1) + _OTHER_FILES
        return UnsupportedTarget(
            pid, f"too many open files: for the timers of {threads} threads",
            f"allow {files}: ulimit -n, LimitNOFILE= in a systemd unit, --ulimit nofile= in a container",
            "or record without --perf-events",
        )  # fmt: skip
    return UnsupportedTarget(
        pid, f"cannot set timers (perf_event_open(2)): {failure.strerror}",
        "timers need Linux 5.13, with perf events; record without --perf-events",
    )  # fmt: skip


def _online_cpus() -> list[int]:
    """Return the CPUs that are online; if /sys is not mounted, all CPUs."""
    online = read_text("/sys/devices/system/cpu/online").strip()
    if not online:
        return [*range(os.cpu_count() or 1)]
    ranges = [part.partition("-") for part in online.split(",")]
    return [cpu for low, _, high in ranges for cpu in range(int(low), int(high or low) + 1)]
