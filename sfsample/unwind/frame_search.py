"""Searches the stack, or the code, for the value of an unknown register that a row needs.

A frame ends at the return address of the call that made it.  A word on the stack may be that return address
if the call before it leads to the function of the frame, directly or through a linkage stub.  The row of the
function then gives the register from which its CFA is counted.

A leaf of AArch64 or s390x may have the return address itself in the unknown register (an example is glibc's
__syscall_cancel_arch).  Then the return address is behind one of the calls of the function in its module.

A candidate proves nothing by itself.  `Unwinder.search` accepts it only if its walk reaches the outermost
frame, and no other candidate's walk does.
"""

from collections.abc import Iterator

from sfsample.core.memory import words_at
from sfsample.core.rule import CFA
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.step import Walk

_WORD = 8  # bytes


def candidate_walks(walk: Walk, row: UnwindRow, modules: ModuleMap) -> Iterator[Walk]:
    """Yield copies of `walk`, each with a possible value of the register that `row`, its next row, lacks."""
    if row.cfa.base in walk.registers:
        assert row.ra is not None  # noqa: S101 - a row without a caller lacks no register
        register, values = row.ra.base, _return_addresses(walk, modules)
    else:
        register = row.cfa.base
        values = _cfa_registers(walk, row, modules) if _has_plain_cfa(row) else iter(())
    return (walk.assuming(register, value) for value in values)


def _return_addresses(walk: Walk, modules: ModuleMap) -> Iterator[int]:
    module = modules.find(walk.frame.lookup_pc)
    start = module.function_start(walk.frame.lookup_pc) if module else None
    return iter(module.calls_of(start)) if module and start is not None else iter(())


def _cfa_registers(walk: Walk, row: UnwindRow, modules: ModuleMap) -> Iterator[int]:
    """Yield values of the CFA register, one for each word that may be the return address of the frame."""
    module, words = modules.find(walk.frame.lookup_pc), words_at(walk.memory, walk.frame.sp)
    start = module.function_start(walk.frame.lookup_pc) if module else None
    if start is None or words is None or row.ra is None:
        return
    base, view = words
    mask = walk.arch.ra_mask if row.mangled else -1
    for at in range(max(0, walk.frame.sp - base) // _WORD, len(view)):
        word = view[at] & mask
        if modules.is_code(word) and _calls_function(word, start, modules):
            yield base + _WORD * at - row.ra.offset - row.cfa.offset


def _has_plain_cfa(row: UnwindRow) -> bool:
    """Return True if the CFA is a register plus an offset, and the return address is on the stack."""
    cfa, ra = row.cfa, row.ra
    if ra is None or cfa.deref or cfa.expression or ra.expression:
        return False
    return ra.base == CFA and ra.deref


def _calls_function(return_address: int, start: int, modules: ModuleMap) -> bool:
    """Return True if the call before a return address leads to the function that begins at `start`."""
    target = modules.call_target(return_address)
    if target is None or target == start:
        return target == start
    stubs = modules.find(target)
    slot = stubs.stub_slot(target) if stubs else None
    return stubs is not None and slot is not None and modules.word(slot, stubs.image.byteorder) == start
