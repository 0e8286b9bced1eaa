"""Finds the locks that a parked goroutine will unlock by a deferred call.

A lock of Go stores no owner.  But `defer lock.Unlock()` makes a closure, which has the addresses of the code
and of the lock.  The closure does not prove that the goroutine holds the lock: the program may have
unlocked the lock already.  sfsample does not find a lock that is unlocked without `defer`, or through the
structure that contains the lock.

Source: Go, src/runtime/panic.go (nextDefer, nextFrame), src/runtime/runtime2.go (_defer, funcval).
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from sfsample.core.arch import AARCH64, AMD64
from sfsample.core.memory import BytesMemory, ReadMemory, word_in
from sfsample.core.stack import Frame
from sfsample.formats.gopclntab.deferred_code import open_defers, unlocked_by
from sfsample.formats.gopclntab.table import GoTable
from sfsample.modules.module import Module
from sfsample.runtimes.go.layout import Goroutine, GoRuntimeLayout

# bytes from `varp`, the end of a frame's variables, to the CFA
_VARP = {AMD64.machine: 16, AARCH64.machine: 8}
_DEFER_FN = 24  # offset of _defer.fn
_DEFER_BYTES = 48
_CLOSURE_BYTES = 16  # code, first captured value
_MAX_DEFERS = 64  # records in the list of a goroutine


class Unlock(NamedTuple):
    """A pending deferred call that unlocks a lock."""

    lock: int  # address of the lock
    text: str  # "Unlock", "RUnlock", or "write Unlock" of an RWMutex
    by_hand: bool = False  # True: an active function also unlocks a lock without `defer`, maybe this one


class DeferReader:
    """Reads the pending deferred calls of goroutines from the copies of their stacks."""

    def __init__(self, layout: GoRuntimeLayout, module: Module, table: GoTable, read: ReadMemory) -> None:
        self._layout, self._read_memory, self._varp = layout, read, _VARP[module.image.machine]
        self._open_at = cache(lambda pc: open_defers(table, module.vaddr(pc)))
        self._unlocked_by = cache(lambda code: unlocked_by(table, module.vaddr(code), is_entry=True))
        self._by_hand = cache(lambda pc: unlocked_by(table, module.vaddr(pc), is_entry=False) != "")

    def unlocks(self, goroutine: Goroutine, frames: Sequence[Frame]) -> tuple[Unlock, ...]:
        """Return the pending deferred Unlock calls of a goroutine with these frames."""
        stack = BytesMemory(goroutine.sp, goroutine.stack)
        listed = ((closure, len(frames)) for closure in self._of_list(goroutine.defers, stack))
        closures = (*self._of_frames(frames, stack), *listed)
        found = (self._unlock(stack, closure, frames[:count]) for closure, count in closures)
        return tuple(dict.fromkeys(filter(None, found)))

    def _of_frames(self, frames: Sequence[Frame], stack: BytesMemory) -> Iterator[tuple[int, int]]:
        """Yield the addresses of the closures of open-coded defers, and the number of frames up to theirs."""
        for count, frame in enumerate(frames, 1):
            defers = self._open_at(frame.pc)
            if defers is not None and frame.cfa:
                (below, places), varp = defers, frame.cfa - self._varp
                [bits] = stack.read(varp - below, 1) or b"\0"
                pending = (at for bit, at in enumerate(places) if bits & 1 << bit)
                yield from ((stack.word(varp - at) or 0, count) for at in pending)

    def _of_list(self, record: int, stack: BytesMemory) -> Iterator[int]:
        """Yield the addresses of the closures in a goroutine's list of deferred calls."""
        for _ in range(_MAX_DEFERS):
            data = self._read(stack, record, _DEFER_BYTES) if record else None
            if data is None:
                return
            yield word_in(data, _DEFER_FN)
            record = word_in(data, self._layout.defer_link)

    def _read(self, stack: BytesMemory, address: int, size: int) -> bytes | None:
        return stack.read(address, size) or self._read_memory(address, size)

    def _unlock(self, stack: BytesMemory, address: int, active: Sequence[Frame]) -> Unlock | None:
        closure = self._read(stack, address, _CLOSURE_BYTES)
        code, lock = word_in(closure), word_in(closure, 8)
        text = self._unlocked_by(code) if code and lock else ""
        return Unlock(lock, text, any(self._by_hand(frame.pc) for frame in active)) if text else None
