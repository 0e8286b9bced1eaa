"""Searches the stack, or the code, for the value of an unknown register that a row needs.

The return address of a frame is a word on the stack.  A word is a candidate if its value follows a
call of the frame's function, directly or through a linkage stub.  The place of the word on the stack gives
the CFA.  The CFA and the row of the function give the register from which the CFA is counted.

A leaf function of AArch64 or s390x may have its return address in the unknown register (an example is glibc's
__syscall_cancel_arch).  In this case, each call of the function in its module gives a candidate.

A candidate proves nothing by itself.  `Unwinder.search` accepts a candidate only if its walk reaches the
outermost frame, and no walk of another candidate does.
"""

from collections.abc import Iterator

from sfsample.core.memory import words_at
from sfsample.core.rule import CFA, Rule
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.step import Walk

_WORD = 8  # bytes


def candidate_walks(walk: Walk, row: UnwindRow, modules: ModuleMap) -> Iterator[Walk]:
    """Yield copies of `walk`, each with a possible value of the unknown register that `row` needs."""
    module = modules.find(walk.frame.lookup_pc)
    start = module.function_start(walk.frame.lookup_pc) if module else None
    if module is None or start is None or row.ra is None:
        return
    if row.cfa.base in walk.registers:
        register, values = row.ra.base, iter(module.calls_of(start))
    else:
        register, values = row.cfa.base, _cfa_registers(walk, row, row.ra, start, modules)
    for value in values:
        yield walk.assuming(register, value)


def _cfa_registers(walk: Walk, row: UnwindRow, ra: Rule, start: int, modules: ModuleMap) -> Iterator[int]:
    """Yield values of the CFA register, one for each word that may be the return address of the frame."""
    cfa, words = row.cfa, words_at(walk.memory, walk.frame.sp)
    is_plain = ra.base == CFA and ra.deref and not (ra.expression or cfa.deref or cfa.expression)
    if words is None or not is_plain:
        return
    base, view = words
    mask = walk.arch.ra_mask if row.mangled else -1
    for at in range(max(0, walk.frame.sp - base) // _WORD, len(view)):
        word = view[at] & mask
        if modules.is_code(word) and modules.call_target(word) == start:
            yield base + _WORD * at - ra.offset - cfa.offset
