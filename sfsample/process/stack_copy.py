"""Copies the stack of one thread, and what else its walk will need.

`fill` makes system calls and nothing else that could be done before or after, as the thread may stand
meanwhile. What it copied becomes a `Memory` later, by `memory`.

A signal handler on an alternate stack hides the interrupted stack from a copy that begins at sp.  So the copy
is searched for the mark of a kind of signal frame, which the first walk through such a frame teaches (that
thread is then captured again), and the stack that the kernel saved beside the mark is copied as well.

Programs also change stacks themselves (split stacks, a function that is called on a large one): where a walk
went on elsewhere is remembered for its thread, and copied as well, as long as the thread's stack leads there.
"""

import time
from collections.abc import Callable, Iterator
from mmap import PAGESIZE

from sfsample.core.arch import Arch
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.stack import Found, Stack, StopReason, found_of
from sfsample.process.thread import Thread
from sfsample.process.vm import CopyBuffer, read_memory

_INTERRUPTED = 2  # stacks that signals have interrupted
_OTHERS = 6  # stacks that a thread's own leads to
_SAVED = 512  # bytes below a return address in which its frame may have saved registers
_PIECE = 128 * 1024  # bytes copied between two looks at the clock
_NEVER_NS = 1 << 63
_NOWHERE = 1 << 64
_REHEARSED = 1024  # bytes at the top of the stack, read beforehand to have the path warm

StackEnd = Callable[[int], tuple[int, int] | None]


class StackCopy:
    """Copies at most `stack_bytes` of a thread's stack.  `stack_end(sp)` tells the stack that sp lies in."""

    def __init__(self, pid: int, arch: Arch, stack_end: StackEnd, stack_bytes: int) -> None:
        self._pid = pid
        self._arch = arch
        self._stack_end = stack_end
        self._slice = stack_bytes + arch.red_zone
        self._buffer = CopyBuffer(self._slice)
        self._spares: list[CopyBuffer] = []
        self._trampolines: set[int] = set()
        self._marks: set[tuple[bytes, int]] = set()  # what to look for, and where the saved sp is from there
        self._base = self._count = self._wanted = 0
        self._until_ns, self._out_of_time = _NEVER_NS, False
        self._extra: list[tuple[int, int]] = []  # address and size of what is in each spare

    def rehearse(self, thread: Thread) -> None:
        """Read what `fill` will probably read, to have it in the CPU's caches."""
        high = thread.stack.extent[1]
        if high:
            self._buffer.fill(thread.tid, high - _REHEARSED, _REHEARSED)

    def fill(self, thread: Thread, sp: int, until_ns: int = _NEVER_NS) -> bool:
        """Copy the stack from `sp`; False: that was given up at `until_ns` (perf_counter_ns)."""
        tid, (low, high) = thread.tid, thread.stack.extent
        end = high if low <= sp < high else _NOWHERE
        self._until_ns, self._out_of_time = until_ns, False
        self._base, self._wanted, self._count = self._take_at(self._buffer, tid, sp, end)
        self._extra = []
        if self._marks:
            self._copy_interrupted(tid)
        for start in thread.stack.other_stacks:
            self._copy_extra(tid, start + self._arch.red_zone)
        return not self._out_of_time

    def _take_at(self, buffer: CopyBuffer, tid: int, sp: int, end: int) -> tuple[int, int, int]:
        """Copy from below sp on, or, where the page below has never been touched, from its own page on.

        Return where that begins, how many bytes were wanted up to `end`, and how many were there.
        """
        base, wanted, count = (sp - self._arch.red_zone) & -8, 0, 0
        for start in (base, max(base, sp & -PAGESIZE)):
            base, wanted = start, min(self._slice, end - start)
            count = self._take(buffer, tid, base, wanted)
            if count:
                break
        return base, wanted, count

    def _take(self, buffer: CopyBuffer, tid: int, start: int, size: int) -> int:
        """Copy to a buffer, piece by piece as long as there is time; return how many bytes."""
        at = 0
        while at < size and not self._out_of_time:
            if time.perf_counter_ns() > self._until_ns:
                self._out_of_time = True
                break
            piece = min(_PIECE, size - at)
            got = buffer.fill(tid, start + at, piece, at)
            at += got
            if got < piece:
                break
        return at

    def _copy_extra(self, tid: int, sp: int) -> None:
        """Copy another stack, if there is a buffer left."""
        if len(self._extra) < len(self._spares):
            start, _, count = self._take_at(self._spares[len(self._extra)], tid, sp, _NOWHERE)
            self._extra.append((start, count))

    def _copy_interrupted(self, tid: int) -> None:
        """Copy the stacks that signals have interrupted."""
        data, arch, base, count = self._buffer.bytes, self._arch, self._base, self._count
        for mark, to_sp in self._marks:
            at = data.find(mark, 0, count)
            while at >= 0 and len(self._extra) < _INTERRUPTED:
                sp = int.from_bytes(data[max(at + to_sp, 0) : max(at + to_sp + 8, 0)], arch.byteorder)
                if not base <= sp < base + count:
                    self._copy_extra(tid, sp)
                at = data.find(mark, at + 8, count)

    def memory(self) -> Memory:
        """Return what was copied; the next `fill` does not change it."""
        order = self._arch.byteorder
        memory = BytesMemory(self._base, bytes(memoryview(self._buffer.bytes)[: self._count]), order)
        if not self._extra:
            return memory
        others = (BytesMemory(start, bytes(memoryview(spare.bytes)[:size]), order)
                  for spare, (start, size) in zip(self._spares, self._extra, strict=False))  # fmt: skip
        return PiecewiseMemory(memory, *others)

    @property
    def bounded(self) -> bool:
        """Whether the copy ended at the limit, not at the end of the stack."""
        whole = self._count == self._wanted == self._slice
        return whole or any(size == self._slice for _, size in self._extra)

    def learn_extent(self, thread: Thread, sp: int) -> None:
        """Note where a thread's stack ends, and leave out what was copied beyond."""
        low, high = thread.stack.extent
        if not low <= sp < high:
            extent = self._stack_end(sp)
            if extent is not None:
                thread.stack.extent = extent
                self._count = min(self._count, extent[1] - self._base)

    def learn_trampolines(self, stack: Stack) -> bool:
        """Note the signal trampolines on a stack; True when a new one cost us the rest of that stack."""
        if Found.SIGNAL_FRAME not in map(found_of, stack.frames):
            return False
        pairs = zip(stack.frames, stack.frames[1:], strict=False)
        seen = {f.pc for f, above in pairs if above.found is Found.SIGNAL_FRAME}
        if seen <= self._trampolines:
            return False
        self._marks.update(mark for pc in seen - self._trampolines for mark in self._marks_of(pc))
        self._trampolines |= seen
        self._need_spares(_INTERRUPTED)
        return stack.stop_reason is not StopReason.OUTERMOST

    def learn_other_stacks(self, thread: Thread, stack: Stack) -> bool:
        """Note where a walk has left what was copied; True when that can be copied, and was not."""
        place, end = thread.stack, [(frame.pc, frame.sp) for frame in stack.frames[-1:]]
        known = place.other_stacks
        if stack.missing is None:
            if known and end != place.other_stacks_end:  # a walk may end by what it read there
                place.other_stacks = self._of(stack, known)
            return False
        extent = self._stack_end(stack.missing)
        start = max(extent[0], stack.missing - _SAVED & -8) if extent else 0
        others = tuple(one for one in known if not start < one < start + self._slice)
        if len(others) == _OTHERS:
            others = self._of(stack, others)
        if extent is None or start in known or len(others) == _OTHERS:
            return False
        place.other_stacks, place.other_stacks_end = (*others, start), end
        self._need_spares(_INTERRUPTED + len(others) + 1)
        return True

    def _of(self, stack: Stack, others: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of these places that a walk has come through."""
        sps = [frame.sp for frame in stack.frames]
        return tuple(one for one in others if any(one <= sp < one + self._slice for sp in sps))

    def _need_spares(self, count: int) -> None:
        self._spares += [CopyBuffer(self._slice) for _ in range(count - len(self._spares))]

    def _marks_of(self, trampoline: int) -> Iterator[tuple[bytes, int]]:
        for kind in self._arch.signal_frames:
            if read_memory(self._pid, trampoline, len(kind.code)) == kind.code:
                yield kind.mark or trampoline.to_bytes(8, self._arch.byteorder), kind.mark_to_sp
