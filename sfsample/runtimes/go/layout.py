"""Says at which offsets the Go runtime keeps the facts about a goroutine (`g`) and a thread (`m`).

The offsets differ between minor versions of Go.  An unknown version has no layout: nothing is guessed.

Source: Go, src/runtime/runtime2.go (g, gobuf, m, sudog, _defer), src/runtime/netpoll.go
(pollDesc), from the DWARF of each version's own programs.
"""

from typing import NamedTuple

# the same in all versions
G_STACK_LOW, G_STACK_HIGH, G_DEFERS, G_M, G_SP, G_PC, G_SELF = 0, 8, 40, 48, 56, 64, 72
M_SCHEDULER = 0  # m.g0, the goroutine on whose stack the scheduler runs
G_BYTES = 152  # bytes of a `g` that are copied


class GoRuntimeLayout(NamedTuple):
    """Offsets in bytes."""

    g_fp: int  # g.sched.bp
    g_status: int  # atomicstatus; then goid, schedlink, waitsince, waitreason (one byte), in words
    g_syscall: int  # syscallsp; then syscallpc
    g_created: int  # gopc; parentGoid is the word before (Go 1.21 and later)
    g_has_parent: bool
    m_tid: int  # m.procid
    m_goroutine: int  # m.curg
    m_c_calls: int  # m.ncgo: calls to C that have not returned
    g_locked: int  # lockedm
    g_waiting: int  # list of sudog
    g_until: int  # sleepWhen; up to Go 1.22: timer, the address of a timer
    sudog_link: int  # waitlink; c is two words after it
    poll_waiters: int  # pollDesc.rg; then wg
    defer_link: int  # _defer.link
    has_deadline: bool  # True: g_until is the time itself
    notes_semaphore: bool  # True: g_waiting also has the sudog of a semaphore (Go 1.26 and later)


_LAYOUTS = {  # key: minor version
    19: (104, 144, 112, 296, False, 72, 192, 312, 232, 328, 368, 64, 24, 40, False, False),
    21: (104, 144, 112, 280, True, 72, 192, 312, 208, 312, 352, 64, 32, 40, False, False),
    22: (104, 144, 112, 280, True, 72, 192, 304, 208, 312, 352, 64, 32, 32, False, False),
    23: (104, 152, 112, 288, True, 72, 192, 304, 216, 320, 368, 64, 32, 32, True, False),
    24: (104, 152, 112, 288, True, 72, 192, 304, 216, 320, 368, 64, 32, 32, True, False),
    25: (96, 144, 104, 280, True, 64, 184, 320, 208, 312, 360, 64, 32, 32, True, False),
    26: (96, 144, 104, 288, True, 64, 184, 328, 208, 320, 368, 72, 32, 32, True, True),
    27: (96, 144, 104, 288, True, 64, 184, 328, 208, 320, 368, 72, 32, 32, True, True),
}


def layout_of(minor: int | None) -> GoRuntimeLayout | None:
    """Return the layout of minor version `minor`; None if it is unknown."""
    fields = _LAYOUTS.get(minor) if minor is not None else None
    return None if fields is None else GoRuntimeLayout(*fields)
