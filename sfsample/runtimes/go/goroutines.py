"""Reads all goroutines of a process, which is not stopped: states, reasons to wait, and stacks.

The runtime never frees a `g`, so the addresses in `runtime.allgs` stay valid.  It reuses a `g` for another
goroutine, and moves stacks.  So a stack counts only if the fields of its goroutine are the same after the
stack was read; otherwise both are read again.

Source: Go, src/runtime/runtime2.go (g, waitReason), src/runtime/traceback.go (goroutineheader).
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import unpack_from
from typing import NamedTuple

from sfsample.core.budget import GOROUTINE_NS, READ_NS, Budget
from sfsample.core.memory import ReadMany, Span, word_in
from sfsample.runtimes.go.layout import G_DEFERS, G_M, G_PC, G_SELF, G_SP, G_STACK_HIGH, GoRuntimeLayout
from sfsample.runtimes.go.waits import NO_WAIT, GoWait, Parked, WaitReader

_MAX_GOROUTINES = 1 << 24
_BATCH = 1024  # goroutines that are read together
_MAX_STACK_BYTES = 1 << 16  # bytes of a stack that are read
_MAX_BSS_BYTES = 64 << 20  # bytes of variables that are searched
_MAX_READINGS = 3  # attempts to read a goroutine whose fields change during the reading
_BYTES_OF_COLLECTOR = 7  # waitreason, preempt ... gcscandone
_SCAN = 0x1000  # bit of a status: the garbage collector looks at the stack
_RUNNING, _SYSCALL, _WAITING = 2, 3, 4
_STATUS_TEXTS = {0: "idle", 1: "runnable", _RUNNING: "running", _SYSCALL: "syscall", _WAITING: "waiting",
                 8: "copystack", 9: "preempted", 10: "leaked"}  # fmt: skip
_DEAD = (6, 11)  # _Gdead, _Gdeadextra


class Goroutine(NamedTuple):
    """A goroutine.  Addresses are run-time addresses; 0: there is none."""

    id: int
    state: str  # "running", "chan receive", ...: as in Go's own traceback
    since_ns: int  # CLOCK_MONOTONIC when a garbage collection first saw it wait; 0: none has seen it
    parent: int  # id of the goroutine that created it; 0: unknown
    created_at: int  # return address in the function that created it
    tid: int  # thread that runs it, in the pid namespace of the process
    pc: int  # return address at which it stands; 0 if it runs
    sp: int
    fp: int
    stack: bytes  # its stack from sp; b"" if it runs, or if the stack was moved during each reading
    address: int  # address of its `g`
    defers: int  # address of its innermost `_defer`
    place: bytes  # facts that change whenever it runs
    wait: GoWait  # what it waits for


def find_goroutines(variables: Iterable[Span], layout: GoRuntimeLayout, read: ReadMany) -> Span:
    """Return address and length of the array of all goroutines (`runtime.allgs`); (0, 0): not found.

    `variables`: the memory of variables that begin as zero.  The array is recognized by its first
    goroutine, which has the id 1, and by its last.
    """
    for address, size in variables:
        [data] = read([(address, size & -8)]) if 0 < size <= _MAX_BSS_BYTES else [None]
        words = memoryview(data or b"").cast("Q")
        for array, length, capacity in zip(words, words[1:], words[2:], strict=False):
            if 0 < length <= capacity <= _MAX_GOROUTINES and array and not array % 8:
                first, last = (_word(read, array + 8 * index) for index in (0, length - 1))
                if _is_goroutine(first, layout, read, 1) and _is_goroutine(last, layout, read):
                    return array, length
    return 0, 0


def _is_goroutine(address: int, layout: GoRuntimeLayout, read: ReadMany, goid: int | None = None) -> bool:
    is_own = bool(address) and not address % 8 and _word(read, address + G_SELF) in (address, 0)
    return is_own and (goid is None or _word(read, address + layout.g_status + 8) == goid)


def _word(read: ReadMany, address: int) -> int:
    [data] = read([(address, 8)])
    return word_in(data)


class GoroutineReader:
    """Reads the goroutines of one process.  `reasons`: texts of the reasons to wait, by number."""

    def __init__(
        self, layout: GoRuntimeLayout, reasons: Sequence[str], read: ReadMany, budget: Budget
    ) -> None:
        self._layout, self._reasons, self._read, self._budget = layout, reasons, read, budget
        self._bytes = layout.g_until + 8  # bytes of a `g` that are read
        self._waits = WaitReader(layout, read)
        self.objects = self._waits.objects  # copies of channels and semaphores; see `WaitReader`
        self.read_of = 0, 0  # entries of the array that were read, and all entries

    def goroutines(self, array: Span) -> Iterator[Goroutine]:
        """Yield all living goroutines; `array`: address and length of the array of their addresses.

        This ends when the budget is spent; `read_of` says how much was read.
        """
        address, length = array
        self.read_of = 0, length
        for at in range(0, length, _BATCH):
            count = min(_BATCH, length - at)
            if not self._budget.permits(0, count * READ_NS):
                return
            [data] = self._read([(address + 8 * at, 8 * count)])
            for goroutine in self._read_until_unchanged([*memoryview(data or b"").cast("Q")]):
                if not self._budget.permits(len(goroutine.stack), GOROUTINE_NS):
                    return
                yield goroutine
            self.read_of = at + count, length

    def unmoved(self, goroutines: Iterable[Goroutine]) -> frozenset[int]:
        """Return the ids of those goroutines that have not run since they were read."""
        known = [*goroutines]
        heads = self._heads([goroutine.address for goroutine in known]) if known else ()
        pairs = zip(known, heads, strict=True)
        return frozenset(
            goroutine.id for goroutine, head in pairs if head and self._where(head) == goroutine.place
        )

    def _read_until_unchanged(self, addresses: list[int]) -> Iterator[Goroutine]:
        found = list[Goroutine]()
        for _ in range(_MAX_READINGS):
            done, addresses = self._read_batch(addresses)
            found += done
            if not addresses:
                break
        heads = zip(addresses, self._heads(addresses), strict=True)
        found += [self._goroutine(address, head, b"") for address, head in heads if head]
        yield from (goroutine for goroutine in found if goroutine.state)

    def _heads(self, addresses: Sequence[int]) -> Sequence[bytes | None]:
        return self._read([(address, self._bytes) for address in addresses])

    def _read_batch(self, addresses: Sequence[int]) -> tuple[list[Goroutine], list[int]]:
        """Return the goroutines that did not change during the reading, and the addresses of the others."""
        heads = self._heads(addresses)
        spans = [self._stack_span(head) if head else (0, 0) for head in heads]
        wanted = [index for index, (_, size) in enumerate(spans) if size]
        stacks = dict(zip(wanted, self._read([spans[index] for index in wanted]), strict=True))
        parked = [Parked(addresses[index], head, self._state(head), spans[index][0], stack)
                  for index, stack in stacks.items() if stack and (head := heads[index])]  # fmt: skip
        waits = self._waits.waits(parked)
        again = dict(zip(wanted, self._heads([addresses[index] for index in wanted]), strict=True))
        done, changed = list[Goroutine](), list[int]()
        for index, (address, head) in enumerate(zip(addresses, heads, strict=True)):
            if head and again.get(index, head) == head:
                stack, wait = stacks.get(index) or b"", waits.get(address, NO_WAIT)
                done.append(self._goroutine(address, head, stack, wait))
            elif head:
                changed.append(address)
        return done, changed

    def _stack_span(self, head: bytes) -> Span:
        """Return the part of a stack to read; (0, 0): the goroutine runs, is dead or idle, or has none."""
        status, sp = self._status(head), self._place(head)[1]
        (high,) = unpack_from("<Q", head, G_STACK_HIGH)
        if status in (_RUNNING, *_DEAD, 0) or high <= sp:
            return 0, 0
        return sp, min(high - sp & -8, _MAX_STACK_BYTES)

    def _status(self, head: bytes) -> int:
        return int.from_bytes(head[self._layout.g_status : self._layout.g_status + 4], "little") & ~_SCAN

    def _place(self, head: bytes) -> tuple[int, int, int]:
        """Return pc, sp and fp at which a goroutine stands; in a system call, its caller's, without fp."""
        sp, pc = unpack_from("<QQ", head, self._layout.g_syscall)
        if sp and self._status(head) == _SYSCALL:
            return pc, sp, 0
        sp, pc = unpack_from("<QQ", head, G_SP)
        return pc, sp, unpack_from("<Q", head, self._layout.g_fp)[0]

    def _state(self, head: bytes) -> str:
        """Return the state, as in Go's own traceback; "": there is no such goroutine."""
        status, (goid,) = self._status(head), unpack_from("<Q", head, self._layout.g_status + 8)
        if status in _DEAD or not goid:
            return ""
        reason = head[self._layout.g_status + 32]
        text = self._reasons[reason] if status == _WAITING and reason < len(self._reasons) else ""
        return text or _STATUS_TEXTS.get(status, f"status {status}")

    def _where(self, head: bytes) -> bytes:
        """Return facts that change whenever a goroutine runs: id, sp, pc, flags, and times of its runs.

        The first seven bytes of the flags are left out, because the garbage collector changes them.
        """
        flags = self._layout.g_status + 32 + _BYTES_OF_COLLECTOR
        goid = self._layout.g_status + 8
        return head[goid : goid + 8] + head[G_SP : G_PC + 8] + head[flags : self._layout.g_locked]

    def _goroutine(self, address: int, head: bytes, stack: bytes, wait: GoWait = NO_WAIT) -> Goroutine:
        layout, status = self._layout, self._status(head)
        goid, _, since = unpack_from("<QQQ", head, layout.g_status + 8)
        parent, created_at = unpack_from("<QQ", head, layout.g_created - 8)
        pc, sp, fp = (0, 0, 0) if status == _RUNNING else self._place(head)
        m = word_in(head, G_M)
        return Goroutine(
            goid, self._state(head), since if status == _WAITING else 0,
            parent if layout.g_has_parent else 0, created_at,
            _word(self._read, m + layout.m_tid) if m else 0, pc, sp, fp, stack,
            address, word_in(head, G_DEFERS), self._where(head), wait,
        )  # fmt: skip
