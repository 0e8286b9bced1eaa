"""Parses the records that the kernel writes into the rings of perf events.

The fields of a record depend on the attributes of the event.  This parser expects samples of SAMPLE_TYPE with
the registers of `Parser.mask`.  All other records must end in pid, tid and time (`sample_id_all`).

Source: Linux include/uapi/linux/perf_event.h, enum perf_event_type; perf_event_open(2).
"""

from collections.abc import Iterable
from struct import Struct, unpack_from
from typing import NamedTuple

from sfsample.core.arch import Arch
from sfsample.core.memory import BytesMemory
from sfsample.core.snapshot import Registers
from sfsample.process.registers import layout_of

_TID, _TIME, _CALLCHAIN, _PERIOD, _REGS_USER, _STACK_USER = 1 << 1, 1 << 2, 1 << 5, 1 << 8, 1 << 12, 1 << 13
SAMPLE_TYPE = _TID | _TIME | _CALLCHAIN | _PERIOD | _REGS_USER | _STACK_USER
HEADER = Struct("=IHH")  # kind, misc, size
_ID = Struct("=IIQ")  # pid, tid, time
_MAP = Struct("=IIQQ")  # pid, tid, address, length
_SAMPLED = Struct("=IIQQQ")  # pid, tid, time, period, number of words in the call chain
_WORD = Struct("=Q")
_TASK = Struct("=IIII")  # pid, pid of the creator, tid, tid of the creator
_LOST, _COMM, _FORK, _SAMPLE, _MMAP2 = 2, 3, 7, 9, 10
_MISC_EXEC = 1 << 13
_ABI_64 = 2


class PerfSample(NamedTuple):
    """A sample of a thread in user space, or at its entry into the kernel."""

    at_ns: int  # time on the clock of perf_counter_ns, as in every record
    pid: int
    tid: int
    period_ns: int  # CPU time that the sample represents
    registers: Registers  # empty if the thread has left user space for good, or runs 32-bit code
    memory: BytesMemory
    bounded: bool  # True: the stack may be longer than the copy
    kernel: tuple[int, ...] = ()  # the pc in the kernel, then return addresses; empty in user space


class Mapped(NamedTuple):
    """A process has mapped code."""

    at_ns: int
    pid: int
    start: int
    end: int


class Named(NamedTuple):
    """A thread got a name."""

    at_ns: int
    pid: int
    tid: int
    name: str
    program: bool  # True: execve(2) set the name; False: the program set it


class Born(NamedTuple):
    """A thread was created, perhaps with the id of an ended thread."""

    at_ns: int
    pid: int
    parent: int  # id of the creator's process
    tid: int
    creator: int  # id of the thread that created this thread


class Lost(NamedTuple):
    """The kernel dropped records because the ring was full."""

    at_ns: int
    records: int


RecordOfProcess = PerfSample | Mapped | Named | Born
Record = RecordOfProcess | Lost


class Parser:
    """Parses records of processes of one architecture; `mask` is the value for `sample_regs_user`."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        pairs = layout_of(arch).event_bits
        self._numbers, self.mask = [number for _, number in pairs], sum(1 << bit for bit, _ in pairs)

    def parse(self, data: bytes) -> Record | None:
        """Return one record; None for a kind that sfsample does not use."""
        kind, misc, size = HEADER.unpack_from(data)
        if kind == _SAMPLE:
            return self._sample(data)
        pid, tid, at_ns = _ID.unpack_from(data, size - _ID.size)
        if kind == _MMAP2:
            _, _, start, length = _MAP.unpack_from(data, HEADER.size)
            return Mapped(at_ns, pid, start, start + length)
        if kind == _COMM:
            name = data[HEADER.size + 8 : size - _ID.size].partition(b"\0")[0].decode("utf-8", "replace")
            return Named(at_ns, pid, tid, name, bool(misc & _MISC_EXEC))
        if kind == _FORK:
            return Born(at_ns, *_TASK.unpack_from(data, HEADER.size))
        if kind == _LOST:
            return Lost(at_ns, _WORD.unpack_from(data, HEADER.size + 8)[0])
        return None

    def _sample(self, data: bytes) -> PerfSample:
        pid, tid, at_ns, period_ns, length = _SAMPLED.unpack_from(data, HEADER.size)
        at = HEADER.size + _SAMPLED.size
        kernel = unpack_from(f"={length}Q", data, at)[1:]  # the first word is PERF_CONTEXT_KERNEL
        at += 8 * length
        (abi,) = _WORD.unpack_from(data, at)
        at += _WORD.size
        registers: Registers = {}
        if abi == _ABI_64:
            values = unpack_from(f"={len(self._numbers)}Q", data, at)
            registers = dict(zip(self._numbers, values, strict=True))
        at += 8 * len(self._numbers) if abi else 0
        (size,) = _WORD.unpack_from(data, at)
        at += _WORD.size
        (copied,) = _WORD.unpack_from(data, at + size) if size else (0,)  # number of stack bytes copied
        base = registers.get(self._arch.sp, 0)
        memory = BytesMemory(base, data[at : at + copied], self._arch.byteorder)
        return PerfSample(at_ns, pid, tid, period_ns, registers, memory, copied == size, kernel)


class Family:
    """Selects the records of some processes; with `subprocesses`, also the records of descendants."""

    def __init__(self, pids: Iterable[int], *, subprocesses: bool) -> None:
        self._pids = set(pids)
        self._subprocesses = subprocesses

    def has(self, record: Record) -> bool:
        """Return True if a record belongs to the family or reports losses; records come in order of time."""
        if isinstance(record, Lost):
            return True
        if self._subprocesses and isinstance(record, Born) and record.parent in self._pids:
            self._pids.add(record.pid)
        return record.pid in self._pids
