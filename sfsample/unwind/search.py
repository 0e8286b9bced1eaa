"""A frame whose CFA hangs on a register that nobody has told, searched for on the stack.

Law: the frame ends at the return address of its own call.  A word is taken for that only if the call before
it leads to the very function of the frame, by itself or through a linkage stub; then the function's row tells
the register.  Whoever asks must see that the walk reaches the outermost frame, and that no other word does.
"""

from collections.abc import Iterator

from sfsample.memory import words_at
from sfsample.model import CFA
from sfsample.modules.index import ModuleIndex
from sfsample.unwind.ladder import Walk
from sfsample.unwind.row import UnwindRow

_WORD = 8


def registers_that_fit(walk: Walk, row: UnwindRow, index: ModuleIndex) -> Iterator[int]:
    """Yield values of the register that `row`, which holds where the walk stands, lacks."""
    module, words = index.find(walk.frame.lookup_pc), words_at(walk.memory, walk.frame.sp)
    start = module.function_start(walk.frame.lookup_pc) if module else None
    if start is None or words is None or row.ra is None:
        return
    base, view = words
    for at in range(max(0, walk.frame.sp - base) // _WORD, len(view)):
        if index.is_code(view[at]) and _leads_to(view[at], start, index):
            yield base + _WORD * at - row.ra.offset - row.cfa.offset


def is_plain(row: UnwindRow) -> bool:
    """Whether the CFA is a register and an offset, and the return address is on the stack."""
    cfa, ra = row.cfa, row.ra
    return (
        ra is not None and ra.base == CFA and ra.deref and not (cfa.deref or cfa.expression or ra.expression)
    )


def _leads_to(return_address: int, start: int, index: ModuleIndex) -> bool:
    """Whether the call before a return address calls the function that begins at `start`."""
    caller = index.find(return_address - 1)
    target = caller.call_target(return_address) if caller else None
    if target is None or target == start:
        return target == start
    stubs = index.find(target)
    slot = stubs.stub_slot(target) if stubs else None
    return slot is not None and index.word(slot) == start
