"""Reads all goroutines of a process, which is not stopped: states, reasons to wait, and stacks.

The runtime never frees a `g`, so the addresses in `runtime.allgs` stay valid.  It reuses a `g` for another
goroutine, and moves stacks.  So a stack counts only if the fields of its goroutine are the same after the
stack was read; otherwise both are read again.

Source: Go, src/runtime/runtime2.go (g, waitReason), src/runtime/traceback.go (goroutineheader).
"""

from collections.abc import Iterable, Iterator, Sequence
from struct import unpack_from
from typing import NamedTuple

from sfsample.core.memory import ReadMany, Span, word_in
from sfsample.runtimes.go.layout import G_M, G_SELF, G_SP, G_STACK_HIGH, GoRuntimeLayout

_MAX_GOROUTINES = 1 << 24
_BATCH = 1024  # goroutines that are read together
_MAX_STACK_BYTES = 1 << 16  # bytes of a stack that are read
_MAX_BSS_BYTES = 64 << 20  # bytes of variables that are searched
_MAX_READINGS = 3  # attempts to read a goroutine whose fields change during the reading
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

    def __init__(self, layout: GoRuntimeLayout, reasons: Sequence[str], read: ReadMany) -> None:
        self._layout, self._reasons, self._read = layout, reasons, read
        self._bytes = layout.g_created + 8  # bytes of a `g` that are read

    def goroutines(self, array: Span) -> Iterator[Goroutine]:
        """Yield all living goroutines; `array`: address and length of the array of their addresses."""
        address, length = array
        [data] = self._read([(address, 8 * length)])
        all_addresses = memoryview(data or b"").cast("Q")
        for at in range(0, len(all_addresses), _BATCH):
            found, addresses = list[Goroutine](), [*all_addresses[at : at + _BATCH]]
            for _ in range(_MAX_READINGS):
                done, addresses = self._read_batch(addresses)
                found += done
                if not addresses:
                    break
            found += [self._goroutine(head, b"") for head in self._heads(addresses) if head]
            yield from (goroutine for goroutine in found if goroutine.state)

    def _heads(self, addresses: Sequence[int]) -> Sequence[bytes | None]:
        return self._read([(address, self._bytes) for address in addresses])

    def _read_batch(self, addresses: Sequence[int]) -> tuple[list[Goroutine], list[int]]:
        """Return the goroutines that did not change during the reading, and the addresses of the others."""
        heads = self._heads(addresses)
        spans = [self._stack_span(head) if head else (0, 0) for head in heads]
        wanted = [index for index, (_, size) in enumerate(spans) if size]
        stacks = dict(zip(wanted, self._read([spans[index] for index in wanted]), strict=True))
        again = dict(zip(wanted, self._heads([addresses[index] for index in wanted]), strict=True))
        done, changed = list[Goroutine](), list[int]()
        for index, head in enumerate(heads):
            if head and again.get(index, head) == head:
                done.append(self._goroutine(head, stacks.get(index) or b""))
            elif head:
                changed.append(addresses[index])
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

    def _goroutine(self, head: bytes, stack: bytes) -> Goroutine:
        layout, status = self._layout, self._status(head)
        goid, _, since = unpack_from("<QQQ", head, layout.g_status + 8)
        reason = head[layout.g_status + 32]
        parent, created_at = unpack_from("<QQ", head, layout.g_created - 8)
        state = "" if status in _DEAD or not goid else _STATUS_TEXTS.get(status, f"status {status}")
        if status == _WAITING and reason < len(self._reasons):
            state = self._reasons[reason] or state
        pc, sp, fp = (0, 0, 0) if status == _RUNNING else self._place(head)
        m = word_in(head, G_M)
        return Goroutine(
            goid, state, since if status == _WAITING else 0, parent if layout.g_has_parent else 0,
            created_at, _word(self._read, m + layout.m_tid) if m else 0, pc, sp, fp, stack,
        )  # fmt: skip
