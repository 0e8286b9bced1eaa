"""One thread, one instant: registers and a slice of stack.

Law: inside the window (the `try` block) there are system calls and nothing else: no parsing, no look-up of
modules, no allocation that could be made before or after.  The window closes whatever happens in it.

A signal handler on an alternate stack hides the interrupted stack from a slice taken at sp.  The slice is
therefore searched for the mark of a kind of signal frame (learnt from the first walk through one, which is
then taken again); the stack that the kernel saved beside it is copied as well.
"""

import gc
from collections.abc import Callable, Iterable, Iterator

from sfsample.arch import Arch
from sfsample.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.model import Found, Stack, StopReason, ThreadSnapshot
from sfsample.target.gate import PAUSE
from sfsample.target.tracer import Missed, Tracer
from sfsample.target.vm import CopyBuffer, read_memory

_MAX_EXTRA = 2
_REHEARSED = 1024  # bytes at the top of the stack, read beforehand to have the path warm
DEFAULT_STACK_BYTES = 256 * 1024

StackEnd = Callable[[int], tuple[int, int] | None]


class Capturer:
    """Captures threads of one process.  `stack_end(sp)` tells the extent of the mapping sp lies in."""

    def __init__(
        self,
        pid: int,
        arch: Arch,
        stack_end: StackEnd,
        stack_bytes: int = DEFAULT_STACK_BYTES,
        *,
        child: bool = False,
    ) -> None:
        self._pid = pid
        self._arch = arch
        self._stack_end = stack_end
        self._slice = stack_bytes + arch.red_zone
        self._buffer = CopyBuffer(self._slice)
        self._spare: CopyBuffer | None = None
        self._extents: dict[int, tuple[int, int]] = {}
        self._trampolines: set[int] = set()
        self._marks: set[tuple[bytes, int]] = set()  # what to look for, and where the saved sp is from there
        self.tracer = Tracer(pid, arch, child=child)

    def learn_trampolines(self, stack: Stack) -> bool:
        """Note the signal trampolines on a stack; True when a new one cost us the rest of that stack."""
        pairs = zip(stack.frames, stack.frames[1:], strict=False)
        seen = {f.pc for f, above in pairs if above.found is Found.SIGNAL_FRAME}
        if seen <= self._trampolines:
            return False
        self._marks.update(mark for pc in seen - self._trampolines for mark in self._marks_of(pc))
        self._trampolines |= seen
        self._spare = self._spare or CopyBuffer(_MAX_EXTRA * self._slice)
        return stack.stop_reason is not StopReason.OUTERMOST

    def _marks_of(self, trampoline: int) -> Iterator[tuple[bytes, int]]:
        for kind in self._arch.signal_frames:
            if read_memory(self._pid, trampoline, len(kind.code)) == kind.code:
                yield kind.mark or trampoline.to_bytes(8, self._arch.byteorder), kind.mark_to_sp

    def capture(self, tid: int) -> ThreadSnapshot | Missed:
        """Stop a thread, copy, let it run; everything else happens after that."""
        tracer, buffer = self.tracer, self._buffer
        if tracer.late:
            tracer.settle()
        low, high = self._extents.get(tid, (0, 0))
        wanted = self._slice
        tracer.rehearse(tid)
        if high:
            buffer.fill(tid, high - _REHEARSED, _REHEARSED)
        sp = base = count = 0
        extra: list[tuple[int, int]] = []
        collecting = gc.isenabled()
        gc.disable()  # a collection must not fall into the pause
        PAUSE.acquire()
        try:
            missed = tracer.stop(tid)
            if missed is None:
                sp = tracer.registers(tid)
                base = (sp - self._arch.red_zone) & -8
                if low <= sp < high:
                    wanted = min(wanted, high - base)
                count = buffer.fill(tid, base, wanted)
                if self._marks:
                    extra = self._interrupted_stacks(tid, base, count)
        finally:
            stop_ns = tracer.release()
            PAUSE.release()
            if collecting:
                gc.enable()
        if missed is not None:
            return missed
        if not sp:
            return Missed(gone=True, why="killed while it was stopped")
        registers = tracer.dwarf_registers()
        self._learn_extent(tid, sp)
        memory = self._copied(base, count, extra)
        bounded = count == wanted == self._slice or any(size == self._slice for _, size in extra)
        eintr = tracer.eintr(tid, registers)
        return ThreadSnapshot(tid, registers, memory, bounded, stop_ns, eintr, tracer.arch)

    def _interrupted_stacks(self, tid: int, base: int, count: int) -> list[tuple[int, int]]:
        """Copy the stacks that signals interrupted to the spare buffer; return (address, bytes) of each."""
        data, spare, arch = self._buffer.bytes, self._spare, self._arch
        found: list[tuple[int, int]] = []
        for mark, to_sp in self._marks:
            at = data.find(mark, 0, count)
            while at >= 0 and len(found) < _MAX_EXTRA and spare is not None:
                sp = int.from_bytes(data[max(at + to_sp, 0) : max(at + to_sp + 8, 0)], arch.byteorder)
                if not base <= sp < base + count:
                    start = (sp - arch.red_zone) & -8
                    place = len(found) * self._slice
                    found.append((start, spare.fill(tid, start, self._slice, place)))
                at = data.find(mark, at + 8, count)
        return found

    def _copied(self, base: int, count: int, extra: list[tuple[int, int]]) -> Memory:
        order = self._arch.byteorder
        memory = BytesMemory(base, bytes(self._buffer.bytes[:count]), order)
        if not extra or self._spare is None:
            return memory
        places = range(0, len(extra) * self._slice, self._slice)
        others = (BytesMemory(start, bytes(self._spare.bytes[at : at + size]), order)
                  for at, (start, size) in zip(places, extra, strict=True))  # fmt: skip
        return PiecewiseMemory(memory, *others)

    def _learn_extent(self, tid: int, sp: int) -> None:
        low, high = self._extents.get(tid, (0, 0))
        if not low <= sp < high:
            extent = self._stack_end(sp)
            if extent is not None:
                self._extents[tid] = extent

    def keep_only(self, tids: Iterable[int]) -> None:
        """Drop what is kept for threads that have ended."""
        self._extents = {tid: self._extents[tid] for tid in tids if tid in self._extents}
