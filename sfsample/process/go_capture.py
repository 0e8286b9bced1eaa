"""Captures the goroutine of each thread of a live Go program or library, together with the thread's stack.

The thread-local storage (TLS) of a thread has the address of its goroutine: in a program for x86-64 the word
below fs.base; in a library a word farther below; on AArch64 a word above the thread pointer.  There, x28 has
the address in all Go code, and programs without C code have no TLS.  sfsample checks each candidate: its `m`
must have the id of the thread.

Source: Go, src/cmd/link/internal/ld/data.go, src/runtime/tls_amd64.s and tls_arm64.s.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from struct import iter_unpack
from typing import NamedTuple

from sfsample.core.arch import AARCH64, AMD64
from sfsample.core.budget import GOROUTINE_NS, GOROUTINES_NS, TASKS_NS, TASKS_PER_LOOK, Budget
from sfsample.core.memory import Span, word_in
from sfsample.core.snapshot import Registers, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.formats.gopclntab.find import find_wait_reasons
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.process.beside import Beside, Room
from sfsample.process.process import LiveProcess
from sfsample.process.thread import Thread
from sfsample.process.vm import Pieces, read_memory
from sfsample.runtimes.go.goroutines import GoroutineReader, find_goroutines
from sfsample.runtimes.go.layout import Goroutine, GoRuntimeLayout, layout_of
from sfsample.runtimes.go.pending_unlocks import DeferReader, Unlock
from sfsample.runtimes.go.plan import GoPlan, find_plan

_TLS_BYTES = 1 << 12  # bytes that are searched for the address of the goroutine
# DWARF numbers of the thread pointer, and of the register with the goroutine's address in all Go code
_PLACES = {AMD64.machine: (58, None), AARCH64.machine: (36, 28)}
_MAX_SEARCHES = 64  # failed searches for a thread's goroutine, for all threads of a process


class FoundGoroutine(NamedTuple):
    """A goroutine, its stack if no thread runs it, and its pending deferred Unlock calls."""

    goroutine: Goroutine  # the goroutine, without the copy of its stack
    stack: Stack | None
    unlocks: tuple[Unlock, ...]


class GoCapture:
    """Captures the goroutines of one process."""

    def __init__(self, process: LiveProcess) -> None:
        self._process = process
        self._room = Room()
        self._mapping: Mapping | None = None  # mapping of the program's code
        self._module: Module | None = None
        self._layout: GoRuntimeLayout | None = None
        self._searches = 0  # failed searches so far; see `_MAX_SEARCHES`
        self._allgs = 0  # address of `runtime.allgs`; 0: not found
        self._tasks_budget = Budget(TASKS_NS)
        self.reader: GoroutineReader | None = None  # reader of the last call of `goroutines` or `parked`
        self._defers: DeferReader | None = None
        self.lost = ""  # sentence that says how many goroutines were read; "": all
        self.problem = ""  # reason why stacks end where Go switches stacks; "": they do not end there

    def learn(self, thread: Thread, snapshot: ThreadSnapshot, stack: Stack) -> bool:
        """If a walk needs the goroutine of its thread, find it; True: capture the thread again."""
        is_lost = stack.stop_reason is StopReason.REGISTER_UNKNOWN and thread.goroutine is None
        layout = self.find_layout() if is_lost and self._searches < _MAX_SEARCHES else None
        words = self._candidates(snapshot.registers) if layout is not None else []
        if layout is None or not words:
            return False
        tid = self._process.own_id(thread.tid)
        plans = (find_plan(layout, word, tid, self._read) for word in words if word and not word % 8)
        plan = next(filter(None, plans), None)
        self._searches += plan is None
        if plan is not None:
            thread.goroutine = Beside(plan, self._room, self._process.arch.byteorder)
            thread.stack_end = plan.stack_end
        return plan is not None

    def _candidates(self, registers: Registers) -> list[int]:
        """Return words that may be the address of the goroutine; empty if the registers do not tell."""
        pointer, own = _PLACES[self._process.arch.machine]
        base, below = registers.get(pointer, 0), own is None
        mapping = None if below or not base else self._process.modules.any_mapping(base)
        size = min(_TLS_BYTES, mapping.end - base) if mapping else _TLS_BYTES
        data = self._read(base - size * below, size) if base else None
        words = [word for (word,) in iter_unpack("<Q", data or b"")]
        return words[::-1] if own is None else [*filter(None, [registers.get(own)]), *words]

    def prepare(self, thread: Thread) -> None:
        """Let the next capture of a thread copy its goroutine, unless the capture copies Python frames."""
        thread.beside = thread.beside or thread.goroutine

    def complete(self, thread: Thread, snapshot: ThreadSnapshot) -> ThreadSnapshot:
        """Return the snapshot, with the registers of the goroutine if the capture has copied it."""
        plan = thread.beside.plan if thread.beside is not None else None
        return plan.complete(snapshot) if isinstance(plan, GoPlan) else snapshot

    def find_layout(self) -> GoRuntimeLayout | None:
        """Return the layout of Go in the program, or else in a library that a walk has opened; or None."""
        modules = self._process.modules
        code = next((mapping for mapping in modules.mappings if mapping.executable), None)
        if code is None or self._process.arch.machine not in _PLACES:
            return None
        if code != self._mapping:
            self._mapping, self._searches = code, 0
            self._module, self._layout, self.problem, self.reader = modules.find(code.start), None, "", None
        if self._module is None or self._module.tables.go is None:
            self._module = next((module for module in modules.modules if module.tables.go), None)
        table = self._module.tables.go if self._module is not None else None
        if table is not None and self._layout is None:
            self._layout = layout_of(table.minor)
            if self._layout is None:
                version = table.version or "its version"
                self.problem = f"stacks end where Go switches stacks: {version} is unknown"
        return self._layout

    def goroutines(self, should_stop: Callable[[], bool]) -> Iterator[Goroutine]:
        """Yield all goroutines, and stop no thread; yield nothing without Go code of a known version."""
        budget = Budget(GOROUTINES_NS, should_stop)
        reader = self.reader = self._new_reader(budget)
        if reader is None:
            return
        yield from reader.goroutines(self._array())
        if budget.why:
            done, count = reader.read_of
            why = "there was no time left" if should_stop() else budget.why
            self.lost = f"not all goroutines are shown: {done:,} of {count:,} were read, as {why}"

    def parked(self) -> tuple[list[Goroutine], float]:
        """Return a random choice of the parked goroutines, and the number that each one represents."""
        if self.find_layout() is None or self.reader is None or not self._array()[1]:
            self.reader = self._new_reader(self._tasks_budget)
        (array, length), budget = self._array(), self._tasks_budget
        indexes = random.sample(range(length), min(length, TASKS_PER_LOOK))
        if self.reader is None or not indexes:
            return [], 1.0
        budget.renew()
        found = self.reader.chosen(array, indexes)
        parked = [g for g in found if g.stack and g.state != "syscall"]
        read = [*takewhile(lambda g: budget.permits(len(g.stack), GOROUTINE_NS), parked)]
        return read, length / len(indexes) * len(parked) / max(1, len(read))

    def _new_reader(self, budget: Budget) -> GoroutineReader | None:
        layout, module = self.find_layout(), self._module
        if layout is None or module is None or module.tables.go is None:
            return None
        table = module.tables.go
        variables = [(module.address(low), high - low) for low, high in table.module.bss]
        self._allgs = find_goroutines(variables, self._read_many)
        self._defers = DeferReader(layout, module, table, self._read)
        return GoroutineReader(layout, find_wait_reasons(table), self._read_many, budget)

    def _array(self) -> Span:
        """Return address and length of the array of all goroutines."""
        words = self._read(self._allgs, 16) if self._allgs else None
        return word_in(words), word_in(words, 8)

    def unlocks(self, goroutine: Goroutine, stack: Stack) -> tuple[Unlock, ...]:
        """Return a goroutine's pending deferred Unlock calls, as far as sfsample can read them."""
        return self._defers.unlocks(goroutine, stack.frames) if self._defers is not None else ()

    def _read_many(self, pieces: Sequence[Span]) -> list[bytes | None]:
        joint = Pieces(pieces).read_each(self._process.proc.anchor())
        return joint or [self._read(*piece) for piece in pieces]

    def _read(self, address: int, size: int) -> bytes | None:
        return read_memory(self._process.proc.anchor(), address, size)
