"""A frame that hangs on a register which nobody has told, searched for on the stack or in the code.

Law: the frame ends at the return address of its own call.  A word is taken for that only if the call before
it leads to the very function of the frame, by itself or through a linkage stub; then the function's row tells
the register of the CFA.  Where the return address itself is in a register (a leaf of AArch64 or s390x, as
glibc's __syscall_cancel_arch), it is behind one of the calls of the function that its module has.  Whoever
asks must see that the walk reaches the outermost frame, and that with nothing else it does.
"""

from collections.abc import Iterator

from sfsample.core.memory import words_at
from sfsample.core.rule import CFA
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.step import Walk

_WORD = 8


def suppositions(walk: Walk, row: UnwindRow, index: ModuleMap) -> Iterator[Walk]:
    """Yield walks that know what may be in the register that the row, where the walk stands, lacks."""
    if row.cfa.base in walk.registers:
        assert row.ra is not None  # noqa: S101 - or it would lack nothing
        number, values = row.ra.base, _return_addresses(walk, index)
    else:
        number, values = row.cfa.base, _registers_that_fit(walk, row, index) if _is_plain(row) else iter(())
    return (walk.supposing(number, value) for value in values)


def _return_addresses(walk: Walk, index: ModuleMap) -> Iterator[int]:
    module = index.find(walk.frame.lookup_pc)
    start = module.function_start(walk.frame.lookup_pc) if module else None
    return iter(module.calls_of(start)) if module and start is not None else iter(())


def _registers_that_fit(walk: Walk, row: UnwindRow, index: ModuleMap) -> Iterator[int]:
    module, words = index.find(walk.frame.lookup_pc), words_at(walk.memory, walk.frame.sp)
    start = module.function_start(walk.frame.lookup_pc) if module else None
    if start is None or words is None or row.ra is None:
        return
    base, view = words
    mask = walk.arch.ra_mask if row.mangled else -1
    for at in range(max(0, walk.frame.sp - base) // _WORD, len(view)):
        word = view[at] & mask
        if index.is_code(word) and _leads_to(word, start, index):
            yield base + _WORD * at - row.ra.offset - row.cfa.offset


def _is_plain(row: UnwindRow) -> bool:
    """Whether the CFA is a register and an offset, and the return address is on the stack."""
    cfa, ra = row.cfa, row.ra
    return (
        ra is not None and ra.base == CFA and ra.deref and not (cfa.deref or cfa.expression or ra.expression)
    )


def _leads_to(return_address: int, start: int, index: ModuleMap) -> bool:
    """Whether the call before a return address calls the function that begins at `start`."""
    caller = index.find(return_address - 1)
    target = caller.call_target(return_address) if caller else None
    if target is None or target == start:
        return target == start
    stubs = index.find(target)
    slot = stubs.stub_slot(target) if stubs else None
    return stubs is not None and slot is not None and index.word(slot, stubs.image.byteorder) == start
