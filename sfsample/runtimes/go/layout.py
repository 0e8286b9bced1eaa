"""Says at which offsets the Go runtime keeps the facts about a goroutine (`g`) and a thread (`m`).

The offsets differ between minor versions of Go.  An unknown version has no layout: nothing is guessed.

Source: Go, src/runtime/runtime2.go (g, gobuf, m), from the DWARF of each version's own programs.
"""

from typing import NamedTuple

# the same in all versions
G_STACK_LOW, G_STACK_HIGH, G_M, G_SP, G_PC, G_SELF = 0, 8, 48, 56, 64, 72
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


_LAYOUTS = {  # key: minor version
    19: GoRuntimeLayout(104, 144, 112, 296, False, 72, 192, 312),
    21: GoRuntimeLayout(104, 144, 112, 280, True, 72, 192, 312),
    22: GoRuntimeLayout(104, 144, 112, 280, True, 72, 192, 304),
    23: GoRuntimeLayout(104, 152, 112, 288, True, 72, 192, 304),
    24: GoRuntimeLayout(104, 152, 112, 288, True, 72, 192, 304),
    25: GoRuntimeLayout(96, 144, 104, 280, True, 64, 184, 320),
    26: GoRuntimeLayout(96, 144, 104, 288, True, 64, 184, 328),
    27: GoRuntimeLayout(96, 144, 104, 288, True, 64, 184, 328),
}


def layout_of(minor: int | None) -> GoRuntimeLayout | None:
    """Return the layout of minor version `minor`; None if it is unknown."""
    return _LAYOUTS.get(minor) if minor is not None else None
