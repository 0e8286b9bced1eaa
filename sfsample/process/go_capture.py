"""Captures the goroutine of each thread of a live Go program or library, together with the thread's stack.

The thread-local storage of a thread has the address of its goroutine: in a program the word below fs.base;
in a library a word farther below.  On AArch64, x28 has the address in all Go code, and C code preserves x28.
sfsample checks each candidate: its `m` must have the id of the thread.

Source: Go, src/cmd/link/internal/ld/data.go, src/runtime/tls_amd64.s and asm_arm64.s.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from struct import iter_unpack
from typing import NamedTuple

from sfsample.core.arch import AARCH64, AMD64
from sfsample.core.budget import GOROUTINE_NS, GOROUTINES_NS, TASKS_NS, TASKS_PER_LOOK, Budget
from sfsample.core.memory import Span, word_in
from sfsample.core.snapshot import Registers, ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.formats.gopclntab.find import find_wait_reasons
from sfsample.formats.gopclntab.table import GoTable
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

_FS_BASE, _X28 = 58, 28  # DWARF numbers
_TLS_BYTES = 1 << 12  # a page: bytes below fs.base that are searched for the address of the goroutine
_MAX_SEARCHES = 64  # failed searches for a thread's goroutine, for all threads of a process
_LACKS = (StopReason.REGISTER_UNKNOWN, StopReason.STACK_COPY_ENDED)  # second: in a signal handler
_TWO_RUNTIMES = "a stack that passes through two Go runtimes ends where the outer one switches stacks"


class FoundGoroutine(NamedTuple):
    """A goroutine, its stack if no thread runs it, and its pending deferred Unlock calls."""

    goroutine: Goroutine
    stack: Stack | None
    unlocks: tuple[Unlock, ...]


class GoCapture:
    """Captures the goroutines of one process."""

    def __init__(self, process: LiveProcess) -> None:
        self._process = process
        self._room = Room()
        self._mapping: Mapping | None = None  # mapping of the program's code
        self._module: Module | None = None
        self._searches = 0  # failed searches so far; see `_MAX_SEARCHES`
        self._allgs = 0  # address of `runtime.allgs`; 0: not found
        self._tasks_budget = Budget(TASKS_NS)
        self.reader: GoroutineReader | None = None  # reader of the last call of `goroutines` or `parked`
        self._defers: DeferReader | None = None
        self.lost = ""  # sentence that says how many goroutines were read; "": all
        self.problem = ""  # reason why stacks end where Go switches stacks; "": they do not end there

    def learn(self, thread: Thread, snapshot: ThreadSnapshot, stack: Stack) -> bool:
        """If a walk needs the goroutine of its thread, find it; True: capture the thread again.

        If another runtime of the process has the goroutine, the thread gets a new plan.
        """
        if stack.stop_reason not in _LACKS or self._searches >= _MAX_SEARCHES:
            return False
        self.find_layout()  # begins anew if exec has replaced the program
        pc, known = stack.frames[-1].lookup_pc, thread.goroutine and thread.goroutine.plan
        module = self._process.modules.find(pc)
        table = module.tables.go if module is not None else None
        if not module or not table or (isinstance(known, GoPlan) and pc in known.code):
            return False
        layout, words = self._layout_of(table), self._candidates(snapshot.registers)
        if layout is None or not words:
            return False
        code = range(module.address(table.module.first_pc), module.address(table.module.end_pc))
        tid, read = self._process.own_id(thread.tid), partial(read_memory, thread.tid)
        is_only = partial(self._is_only_runtime, module)
        plans = (find_plan(layout, word, tid, read, code, is_only_runtime=is_only)
                 for word in words if word and not word % 8)  # fmt: skip
        plan = next(filter(None, plans), None)
        self._searches += plan is None or known is not None
        if plan is None:
            return False
        self.problem = _TWO_RUNTIMES if known else self.problem
        thread.goroutine = Beside(plan, self._room, self._process.arch.byteorder)
        thread.go_stack = plan.stack_bounds
        return True

    def _is_only_runtime(self, module: Module) -> bool:
        modules = self._process.modules
        mapped = {modules.find(mapping.start) for mapping in modules.mappings if mapping.executable}
        return not any(other.tables.go for other in mapped if other is not None and other is not module)

    def _candidates(self, registers: Registers) -> list[int]:
        """Return words that may be the address of the goroutine; empty if the registers do not tell."""
        if self._process.arch.machine == AARCH64.machine:
            return [registers[_X28]] if _X28 in registers else []
        base = registers.get(_FS_BASE, 0)
        # the memory before the page of the thread-local storage may be unmapped
        sizes = (_TLS_BYTES, base % _TLS_BYTES) if base else ()
        pieces = (self._read(base - size, size) for size in sizes)
        return [word for (word,) in iter_unpack("<Q", next(filter(None, pieces), b""))][::-1]

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
        if code is None or self._process.arch.machine not in (AMD64.machine, AARCH64.machine):
            return None
        if code != self._mapping:
            self._mapping, self._searches = code, 0
            self._module, self.problem, self.reader = modules.find(code.start), "", None
        if self._module is None or self._module.tables.go is None:
            self._module = next((module for module in modules.modules if module.tables.go), None)
        table = self._module.tables.go if self._module is not None else None
        return self._layout_of(table) if table is not None else None

    def _layout_of(self, table: GoTable) -> GoRuntimeLayout | None:
        layout = layout_of(table.minor)
        if layout is None:
            version = table.version or "its version"
            self.problem = f"stacks end where Go switches stacks: {version} is unknown"
        return layout

    def goroutines(self, should_stop: Callable[[], bool]) -> Iterator[Goroutine]:
        """Yield all goroutines, and stop no thread; yield nothing without Go code of a known version."""
        budget = Budget(GOROUTINES_NS, should_stop)
        reader = self.reader = self._new_reader(budget)
        if reader is None:
            return
        yield from reader.goroutines(self._array())
        others = (m for m in self._process.modules.modules if m is not self._module and m.tables.go)
        for path in (module.path for module in others if self._find_allgs(module)):
            self.lost = f"not all goroutines are shown: those of the Go runtime in {path} are missing"
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
        self._allgs = self._find_allgs(module)
        self._defers = DeferReader(layout, module, module.tables.go, self._read)
        return GoroutineReader(layout, find_wait_reasons(module.tables.go), self._read_many, budget)

    def _find_allgs(self, module: Module) -> int:
        bss = module.tables.go.module.bss if module.tables.go else ()
        return find_goroutines([(module.address(low), high - low) for low, high in bss], self._read_many)

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
