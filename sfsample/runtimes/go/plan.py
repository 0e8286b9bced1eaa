"""Plans the copies of a Go thread's memory in its pause, and reads the goroutine from the copies.

A Go thread has two stacks: the stack of its goroutine, and the stack of the scheduler (g0), which the runtime
and C code use.  A walk may have to cross from one stack to the other, so sfsample copies both at one instant.

The thread's `m` and g0 stay at their addresses while the thread lives.  The goroutine changes, so `follow`
looks up the goroutine in the pause.  While the thread runs on the scheduler's stack, another thread may move
the goroutine's stack.  So sfsample drops the copy of this stack if the goroutine's fields changed meanwhile.
"""

from collections.abc import Callable

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory, ReadMemory, Span, word_in
from sfsample.core.snapshot import GO_CODE, GO_REGISTERS, GOROUTINE_HIGH, GOROUTINE_LOW, ThreadSnapshot
from sfsample.runtimes import Copying
from sfsample.runtimes.go.layout import G_BYTES, G_M, G_PC, G_SP, G_STACK_HIGH, G_STACK_LOW, GoRuntimeLayout

_M_SCHEDULER = 0  # offset of m.g0, the goroutine on whose stack the scheduler runs
_MAX_STACK_BYTES = 1 << 17  # bytes of the other stack that are copied
_SCHEDULER_BYTES = 1 << 13  # bytes below the scheduler's sp that are copied if a signal handler runs
_STACK = G_STACK_LOW, G_STACK_HIGH, G_SP


class GoPlan:
    """The copies that one thread needs.  `m`, `g0`: addresses.  `code`: addresses of the runtime's module."""

    def __init__(self, layout: GoRuntimeLayout, m: int, g0: int, read: ReadMemory, code: range) -> None:
        self._layout, self._scheduler, self._read, self.code = layout, g0, read, code
        self._current = m + layout.m_goroutine  # address of m.curg
        self._clock = m + layout.m_vdso_sp  # address of m.vdsoSP
        self.groups = (((self._current, 8), (self._clock, 8), (g0, G_BYTES)),)
        self._other: Span = 0, 0  # address and size of the copy of the other stack; (0, 0): none

    def follow(self, room: Copying, stack: BytesMemory) -> None:
        """Copy the goroutine, and the stack that the thread does not use now."""
        self._other = 0, 0
        current, words = room.find(self._current, 8), room.words
        goroutine = words[current] if current >= 0 else 0
        before = room.copy(goroutine, G_BYTES) if goroutine else -1
        scheduler = room.find(self._scheduler, G_BYTES)
        if scheduler < 0:
            return
        own_low, own_high, own_sp = (words[scheduler + offset // 8] for offset in _STACK)
        low, high, sp = (words[before + offset // 8] for offset in _STACK) if before >= 0 else (0, 0, 0)
        is_on_goroutine = low <= stack.base < high
        if is_on_goroutine:
            sp, high = own_sp, own_high  # copy the stack of g0: C code may have called the goroutine
        elif not own_low <= stack.base < own_high:
            # a signal handler runs on a third stack; the sp that the runtime has noted is an old one
            sp, start = max(low, high - _MAX_STACK_BYTES), max(own_low, own_sp - _SCHEDULER_BYTES) & -8
            room.copy(start, max(0, min(own_high - start & -8, _MAX_STACK_BYTES)))
        elif low < (clock := words[room.find(self._clock, 8)]) <= high:
            sp = max(low, clock - 64)  # the goroutine is in the vDSO: only `m.vdsoSP` has its sp
        size = min(high - sp & -8, _MAX_STACK_BYTES)
        if sp % 8 or size <= 0 or room.copy(sp, size) < 0:
            return
        after = before if is_on_goroutine else room.copy(goroutine, G_BYTES)
        if after >= 0 and words[after : after + G_BYTES // 8] == words[before : before + G_BYTES // 8]:
            self._other = sp, size

    def stack_bounds(self) -> Span:
        """Return first address and end of the stack of the thread's goroutine; (0, 0): unknown."""
        bounds = self._read(word_in(self._read(self._current, 8)) + G_STACK_LOW, 16)
        return word_in(bounds), word_in(bounds, 8)

    def complete(self, snapshot: ThreadSnapshot) -> ThreadSnapshot:
        """Add the goroutine's registers and the other stack to a snapshot, as far as they were copied."""
        memory = snapshot.memory
        registers = self._registers(memory)
        if not registers:
            return snapshot
        other = memory.read(*self._other)
        if other:
            pieces = memory.pieces if isinstance(memory, PiecewiseMemory) else (memory,)
            memory = PiecewiseMemory(*pieces, BytesMemory(self._other[0], other, memory.byteorder))
        return snapshot._replace(registers=snapshot.registers | registers, memory=memory)

    def _registers(self, memory: Memory) -> dict[int, int]:
        goroutine = memory.word(self._current)
        if goroutine is None:
            return {}
        if not goroutine:  # the thread runs the scheduler
            return {GOROUTINE_LOW: 0, GOROUTINE_HIGH: 0, GO_CODE: self.code.start}
        g, scheduler = memory.read(goroutine, G_BYTES), memory.read(self._scheduler, G_BYTES)
        if g is None or scheduler is None:
            return {}
        fp = self._layout.g_fp
        fields = (word_in(g, at) for at in (G_SP, G_PC, fp, fp - 8, G_STACK_LOW, G_STACK_HIGH))
        words = *fields, word_in(scheduler, G_SP), self.code.start
        return dict(zip(GO_REGISTERS, words, strict=True))


def find_plan(
    layout: GoRuntimeLayout, g: int, tid: int, read: ReadMemory, code: range,
    *, is_only_runtime: Callable[[], bool],
) -> GoPlan | None:  # fmt: skip
    """Return the plan for a thread; None: the memory does not prove that the thread runs `g`.

    `tid` is the thread's id in the pid namespace of the process.  `code`: addresses of the runtime's module.
    A process may have several runtimes.  The pc that a runtime notes in g0, or in the goroutine, is its own.
    A thread of C that does not run Go at the moment may have no such pc.
    """
    m = word_in(read(g + G_M, 8))
    g0, goroutine = word_in(read(m + _M_SCHEDULER, 8)), word_in(read(m + layout.m_goroutine, 8))
    is_proven = word_in(read(m + layout.m_tid, 8)) == tid and word_in(read(g0 + G_M, 8)) == m
    pc = word_in(read(g0 + G_PC, 8)) or word_in(read(goroutine + G_PC, 8))
    if not (m and g0 and is_proven) or not (pc in code or (not pc and is_only_runtime())):
        return None
    return GoPlan(layout, m, g0, read, code)
