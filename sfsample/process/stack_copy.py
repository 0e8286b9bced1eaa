"""Copies the stack of one thread, and the other stacks to which the walk of this stack leads.

The thread may be stopped during `fill`.  So `fill` only makes system calls.  Later, `result` does all other
work, and turns the copy into a `Memory`.

A stack may continue on another stack: a signal handler runs on an alternate stack, or the program itself
switches stacks (split stacks; a function that is called on a larger stack).  If a walk leaves the copied
stacks, sfsample captures the thread again, and also copies the stack to which the walk led.  Later captures
copy the other stack, too, as long as the thread's own stack leads to it.
"""

import time
from collections.abc import Callable
from mmap import PAGESIZE

from sfsample.core.arch import Arch
from sfsample.core.memory import ADDRESS_SPACE, BytesMemory, Memory, PiecewiseMemory
from sfsample.core.stack import Stack
from sfsample.process.beside import Beside
from sfsample.process.thread import Thread
from sfsample.process.vm import CopyBuffer

_MAX_OTHER_STACKS = 6  # stacks to which a thread's own stack leads
_SAVED_REGISTERS_BYTES = 512  # bytes below a return address, where a frame may have saved registers
_PIECE_BYTES = 128 * 1024  # bytes copied between two checks of the time limit
NO_LIMIT_NS = 1 << 62
_REHEARSED_BYTES = 1024  # bytes at the top of the stack, read in advance to warm the CPU's caches

StackExtent = Callable[[int], tuple[int, int] | None]


class StackCopy:
    """Copies at most `stack_bytes` of a stack; `stack_extent(sp)` gives start and end of the stack at sp."""

    def __init__(self, pid: int, arch: Arch, stack_extent: StackExtent, stack_bytes: int) -> None:
        self._pid = pid
        self._arch = arch
        self._stack_extent = stack_extent
        self._slice = stack_bytes + arch.red_zone
        self._buffer = CopyBuffer(self._slice)
        self._spares: list[CopyBuffer] = []
        self._base = self._count = self._requested = 0
        self._until_ns, self._out_of_time = NO_LIMIT_NS, False
        self.cut_short = 0  # number of copies that the time limit cut short
        self._beside: Beside | None = None  # memory copied together with the last thread's stack
        self._extra: list[tuple[int, int]] = []  # address and size of the stack in each spare buffer

    def rehearse(self, thread: Thread) -> None:
        """Bring the memory that `fill` will probably read into the CPU's caches."""
        high = thread.stack_extent[1]
        if not high:
            return
        if thread.beside is None:
            self._buffer.fill(thread.tid, high - _REHEARSED_BYTES, _REHEARSED_BYTES)
        else:
            thread.beside.fill(thread.tid, self._buffer, high - _REHEARSED_BYTES, _REHEARSED_BYTES)
            self._follow(thread.beside, high - _REHEARSED_BYTES, _REHEARSED_BYTES, NO_LIMIT_NS)

    def fill(self, thread: Thread, sp: int, until_ns: int = NO_LIMIT_NS) -> None:
        """Copy the stack from `sp` on, until `until_ns` (perf_counter_ns), but at least its first piece."""
        if thread.go_stack is not None:
            low, high = thread.go_stack()
            if low <= sp < high:
                thread.stack_extent = low, high
        tid, (low, high) = thread.tid, thread.stack_extent
        end = high if low <= sp < high else ADDRESS_SPACE
        self._until_ns, self._out_of_time = until_ns, False
        self._beside = thread.beside
        self._base, self._requested, self._count = self._copy_from(self._buffer, tid, sp, end)
        if self._beside is not None:
            self._follow(self._beside, self._base, self._count, until_ns)
        self._extra = []
        for buffer, start in zip(self._spares, thread.other_stacks, strict=False):
            if not self._out_of_time:
                base, _, count = self._copy_from(buffer, tid, start + self._arch.red_zone, ADDRESS_SPACE)
                self._extra.append((base, count))
        self.cut_short += self._out_of_time

    def _follow(self, beside: Beside, base: int, count: int, until_ns: int) -> None:
        """Copy other memory to which the stack in the buffer (`count` bytes from address `base`) leads."""
        copied = memoryview(self._buffer.bytes)[:count]
        beside.follow(BytesMemory(base, copied, self._arch.byteorder), until_ns)  # type: ignore[arg-type]

    def _copy_from(self, buffer: CopyBuffer, tid: int, sp: int, end: int) -> tuple[int, int, int]:
        """Copy from the red zone below sp; if the red zone is unreadable, copy from the page of sp.

        Return the first address, the number of bytes requested up to `end`, and the number of bytes read.
        """
        base, requested, count = max(0, sp - self._arch.red_zone) & -8, 0, 0
        for start in (base, max(base, sp & -PAGESIZE)):
            base, requested = start, min(self._slice, end - start)
            count = self._copy_pieces(buffer, tid, base, requested)
            if count:
                break
        return base, requested, count

    def _copy_pieces(self, buffer: CopyBuffer, tid: int, start: int, size: int) -> int:
        """Copy piece by piece until the time limit; return the number of bytes read.

        sfsample may have lost its CPU, so the limit may have passed already.  The first piece is copied even
        then, because most stacks fit into one piece.
        """
        at = 0
        while at < size:
            if at and time.perf_counter_ns() > self._until_ns:
                self._out_of_time = True
                break
            piece = min(_PIECE_BYTES, size - at)
            first = None
            if at == 0 and buffer is self._buffer and self._beside is not None:
                first = self._beside.fill(tid, buffer, start, piece)
            got = buffer.fill(tid, start + at, piece, at) if first is None else first
            at += got
            if got < piece:
                break
        return at

    def result(self, thread: Thread, sp: int) -> tuple[Memory, bool]:
        """Return a copy that no later `fill` changes, and True if a limit cut off the stack's end."""
        self._learn_extent(thread, sp)
        order = self._arch.byteorder
        bounded = self._out_of_time or self._count == self._requested == self._slice
        memory = BytesMemory(self._base, bytes(memoryview(self._buffer.bytes)[: self._count]), order)
        beside = self._beside.result() if self._beside is not None else None
        if not self._extra and beside is None:
            return memory, bounded
        others = (BytesMemory(start, bytes(memoryview(spare.bytes)[:size]), order)
                  for spare, (start, size) in zip(self._spares, self._extra, strict=False))  # fmt: skip
        bounded |= any(size == self._slice for _, size in self._extra)
        return PiecewiseMemory(memory, *others, *([beside] if beside else [])), bounded

    def _learn_extent(self, thread: Thread, sp: int) -> None:
        """Learn the bounds of a thread's stack, and drop the bytes that were copied beyond its end."""
        low, high = thread.stack_extent
        if not low <= sp < high:
            extent = self._stack_extent(sp)
            if extent is not None:
                thread.stack_extent = extent
                self._count = min(self._count, extent[1] - self._base)

    def learn(self, thread: Thread, stack: Stack) -> bool:
        """If a walk needs another stack, note it for the next capture; return True if the stack is new."""
        end = [(frame.pc, frame.sp) for frame in stack.frames[-1:]]
        known = thread.other_stacks
        if stack.missing is None:
            # a walk that still ends before the other stack proves nothing: the copy may have wrong data
            if known and end != thread.other_stacks_end:
                thread.other_stacks = self._visited(stack, known)
            return False
        extent = self._stack_extent(stack.missing)
        start = max(extent[0], stack.missing - _SAVED_REGISTERS_BYTES & -8) if extent else 0
        others = tuple(other for other in known if not start < other < start + self._slice)
        if len(others) == _MAX_OTHER_STACKS:
            others = self._visited(stack, others)
        if extent is None or start in known or len(others) == _MAX_OTHER_STACKS:
            return False
        thread.other_stacks, thread.other_stacks_end = (*others, start), end
        self._spares += [CopyBuffer(self._slice) for _ in range(len(others) + 1 - len(self._spares))]
        return True

    def _visited(self, stack: Stack, starts: tuple[int, ...]) -> tuple[int, ...]:
        sps = [frame.sp for frame in stack.frames]
        return tuple(start for start in starts if any(start <= sp < start + self._slice for sp in sps))
