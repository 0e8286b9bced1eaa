"""Finds the locks of which a parked goroutine has a deferred Unlock pending.

Go notes no owner of a lock.  But a function that has called `defer lock.Unlock()` keeps a closure: its code
and the address of the lock.  That is a fact, and no proof that the goroutine holds the lock: the program may
have unlocked it in between.  A lock that is unlocked without `defer`, or through the structure in which it
lies, is not found.

Source: Go, src/runtime/panic.go (nextDefer, nextFrame), src/runtime/runtime2.go (_defer, funcval).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sfsample.core.memory import BytesMemory, ReadMemory, word_in
from sfsample.core.stack import Frame
from sfsample.errors import FormatError
from sfsample.formats.gopclntab.defers import open_defers, unlocked_by
from sfsample.formats.gopclntab.table import GoTable
from sfsample.modules.module import Module
from sfsample.runtimes.go.layout import Goroutine, GoRuntimeLayout

_VARP = 16  # bytes from the first byte after the variables of a frame (varp) to its CFA; x86-64
_DEFER_FN = 24  # offset of _defer.fn
_DEFER_BYTES = 48
_CLOSURE_BYTES = 16  # code, first captured value
_MAX_DEFERS = 64  # records in the list of a goroutine


class Unlock(NamedTuple):
    """A pending deferred call that unlocks a lock."""

    lock: int  # address
    text: str  # "Unlock", "RUnlock", or "write Unlock" of an RWMutex


class DeferReader:
    """Reads the pending defers of the goroutines of a program, from the copies of their stacks."""

    def __init__(self, layout: GoRuntimeLayout, module: Module, table: GoTable, read: ReadMemory) -> None:
        self._layout, self._module, self._table, self._read_memory = layout, module, table, read
        self._open: dict[int, tuple[int, tuple[int, ...]] | None] = {}  # key: pc
        self._unlocked: dict[int, str] = {}  # key: address of the code of a closure

    def unlocks(self, goroutine: Goroutine, frames: Sequence[Frame]) -> tuple[Unlock, ...]:
        """Return the pending deferred Unlock calls of a goroutine with these frames."""
        if not goroutine.defers and not any(self._open_at(frame.pc) for frame in frames):
            return ()
        stack = BytesMemory(goroutine.sp, goroutine.stack)
        closures = [*self._of_frames(frames, stack), *self._of_list(goroutine.defers, stack)]
        found = (self._unlock(self._read(stack, closure, _CLOSURE_BYTES)) for closure in closures if closure)
        return tuple(dict.fromkeys(filter(None, found)))

    def _of_frames(self, frames: Sequence[Frame], stack: BytesMemory) -> Iterator[int]:
        """Yield the closures of open-coded defers."""
        for frame in frames:
            info = self._open_at(frame.pc) if frame.cfa else None
            if info is None or frame.cfa is None:
                continue
            (below, closures), varp = info, frame.cfa - _VARP
            bits = (stack.read(varp - below, 1) or b"\0")[0]
            for index, closure in enumerate(closures):
                if bits & 1 << index:
                    yield stack.word(varp - closure) or 0

    def _open_at(self, pc: int) -> tuple[int, tuple[int, ...]] | None:
        if pc not in self._open:
            try:
                function = self._table.function_at(self._module.vaddr(pc))
                self._open[pc] = open_defers(self._table, function) if function else None
            except FormatError:
                self._open[pc] = None
        return self._open[pc]

    def _of_list(self, record: int, stack: BytesMemory) -> Iterator[int]:
        """Yield the closures of the goroutine's list of defers."""
        for _ in range(_MAX_DEFERS):
            data = self._read(stack, record, _DEFER_BYTES) if record else None
            if data is None:
                return
            yield word_in(data, _DEFER_FN)
            record = word_in(data, self._layout.defer_link)

    def _read(self, stack: BytesMemory, address: int, size: int) -> bytes | None:
        return stack.read(address, size) or self._read_memory(address, size)

    def _unlock(self, closure: bytes | None) -> Unlock | None:
        code, lock = word_in(closure), word_in(closure, 8)
        if code and code not in self._unlocked:
            self._unlocked[code] = unlocked_by(self._table, self._module.vaddr(code))
        text = self._unlocked.get(code)
        return Unlock(lock, text) if text and lock else None
