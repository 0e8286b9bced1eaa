"""Defines the offsets of the fields of a goroutine (`g`) and of a thread (`m`) in the Go runtime.

The offsets differ between minor versions of Go.  An unknown version has no layout; sfsample guesses nothing.

Source: Go, src/runtime/runtime2.go (g, gobuf, m, sudog, _defer, waitReason), src/runtime/netpoll.go
(pollDesc), src/runtime/traceback.go (goroutineheader); the offsets: DWARF of programs of each version.
"""

from collections.abc import Sequence
from struct import unpack_from
from typing import NamedTuple

from sfsample.core.memory import word_in

# offsets that all versions share
G_STACK_LOW, G_STACK_HIGH, G_DEFERS, G_M, G_SP, G_PC, G_SELF = 0, 8, 40, 48, 56, 64, 72
G_BYTES = 112  # bytes of a `g` that are copied in a pause: bounds of its stack, m, sched
_BYTES_OF_COLLECTOR = 7  # bytes from waitreason on that the garbage collector changes
_SCAN = 0x1000  # bit of a status: the garbage collector scans the stack
_IDLE, _RUNNING, _SYSCALL, _WAITING = 0, 2, 3, 4
_STATUS_TEXTS = {_IDLE: "idle", 1: "runnable", _RUNNING: "running", _SYSCALL: "syscall", _WAITING: "waiting",
                 8: "copystack", 9: "preempted", 10: "leaked"}  # fmt: skip
_DEAD = (6, 11)  # _Gdead, _Gdeadextra


class GoWait(NamedTuple):
    """The facts that the memory shows about the wait of a goroutine."""

    objects: tuple[int, ...] = ()  # addresses of the channels, or address of the semaphore
    fd: int = -1  # descriptor; -1: none
    until_ns: int = 0  # end of a sleep, CLOCK_MONOTONIC; 0: unknown


NO_WAIT = GoWait()


class Goroutine(NamedTuple):
    """A goroutine.  Addresses are run-time addresses; 0: no address."""

    address: int  # address of its `g`
    id: int
    state: str  # "running", "chan receive", ...: words of Go's traceback
    since_ns: int  # CLOCK_MONOTONIC of the first garbage collection during its wait; 0: no collection yet
    parent: int  # id of the goroutine that created this goroutine; 0: unknown
    created_at: int  # return address in the function that created this goroutine
    thread: int  # address of the `m` of the thread that runs it
    pc: int  # address at which the goroutine will go on; 0: it runs
    sp: int
    fp: int
    high: int  # end of its stack
    defers: int  # address of its innermost `_defer`
    waiting: int  # address of its first `sudog`
    until: int  # field `GoRuntimeLayout.g_until`
    place: bytes  # fields that change whenever the goroutine runs: id, sp, pc, flags, times of runs
    stack: bytes = b""  # stack from sp on; b"": the goroutine runs, or its stack moved during each reading
    tid: int = 0  # thread that runs it, in the pid namespace of the process
    ra: int = 0  # AArch64: register with the return address; 0: the return address is on the stack
    locked_to: int = 0  # thread that alone may run it (`runtime.LockOSThread`); at first the thread's `m`
    wait: GoWait = NO_WAIT


class GoRuntimeLayout(NamedTuple):
    """Offsets in bytes."""

    g_fp: int  # g.sched.bp; the word before: g.sched.lr
    g_status: int  # atomicstatus; the next words: goid, schedlink, waitsince, waitreason (one byte)
    g_syscall: int  # syscallsp; then syscallpc
    g_created: int  # gopc; parentGoid is the word before (Go 1.21 and later)
    g_has_parent: bool
    m_tid: int  # m.procid
    m_goroutine: int  # m.curg
    g_locked: int  # lockedm
    g_waiting: int  # list of sudog
    g_until: int  # sleepWhen; up to Go 1.22: timer, the address of a timer
    sudog_link: int  # waitlink; two words later: c
    poll_waiters: int  # pollDesc.rg; then wg
    defer_link: int  # _defer.link
    has_deadline: bool  # True: g_until is the time itself
    notes_semaphore: bool  # True: g_waiting also has the sudog of a semaphore (Go 1.26 and later)
    m_vdso_sp: int  # m.vdsoSP: end of the frame that calls the vDSO; 0: no such frame

    def goroutine(self, address: int, g: bytes, reasons: Sequence[str]) -> Goroutine | None:
        """Return a goroutine from the first bytes `g` of its structure; None: the goroutine has ended.

        `reasons`: texts of the reasons to wait, by number.  In a system call, pc and sp are the caller's.
        """
        status, _, goid, _, since, reason = unpack_from("<IIQQQB", g, self.g_status)
        status &= ~_SCAN
        if status in _DEAD or not goid:
            return None
        text = reasons[reason] if status == _WAITING and reason < len(reasons) else ""
        parent, created_at = unpack_from("<QQ", g, self.g_created - 8)
        high, defers, m, sp, pc = unpack_from("<8xQ24x4Q", g)  # G_STACK_HIGH, and from G_DEFERS on
        ra, fp = unpack_from("<QQ", g, self.g_fp - 8)
        if status == _SYSCALL and word_in(g, self.g_syscall):
            (sp, pc), fp, ra = unpack_from("<QQ", g, self.g_syscall), 0, 0
        elif status in (_IDLE, _RUNNING):
            sp = pc = fp = ra = 0
        return Goroutine(
            address, goid, text or _STATUS_TEXTS.get(status, f"status {status}"),
            since if status == _WAITING else 0, parent if self.g_has_parent else 0, created_at,
            m, pc, sp, fp, high, defers, word_in(g, self.g_waiting), word_in(g, self.g_until),
            self.place(g), ra=ra, locked_to=word_in(g, self.g_locked),
        )  # fmt: skip

    def place(self, g: bytes) -> bytes:
        """Return `Goroutine.place` from the first bytes of the structure; it begins with the id."""
        flags = self.g_status + 32 + _BYTES_OF_COLLECTOR
        return g[self.g_status + 8 : self.g_status + 16] + g[G_SP : G_PC + 8] + g[flags : self.g_locked]


_LAYOUTS = {  # key: minor version
    19: (104, 144, 112, 296, False, 72, 192, 232, 328, 368, 64, 24, 40, False, False, 800),
    21: (104, 144, 112, 280, True, 72, 192, 208, 312, 352, 64, 32, 40, False, False, 808),
    22: (104, 144, 112, 280, True, 72, 192, 208, 312, 352, 64, 32, 32, False, False, 1120),
    23: (104, 152, 112, 288, True, 72, 192, 216, 320, 368, 64, 32, 32, True, False, 856),
    24: (104, 152, 112, 288, True, 72, 192, 216, 320, 368, 64, 32, 32, True, False, 880),
    25: (96, 144, 104, 280, True, 64, 184, 208, 312, 360, 64, 32, 32, True, False, 896),
    26: (96, 144, 104, 288, True, 64, 184, 208, 320, 368, 72, 32, 32, True, True, 896),
    27: (96, 144, 104, 288, True, 64, 184, 208, 320, 368, 72, 32, 32, True, True, 896),
}


def layout_of(minor: int | None) -> GoRuntimeLayout | None:
    """Return the layout of a minor version; None: the version is unknown."""
    fields = _LAYOUTS.get(minor) if minor is not None else None
    return None if fields is None else GoRuntimeLayout(*fields)
