"""Words that a function has popped: its table may say until the return that they are below sp.

Law: an interrupt copies the stack from sp on (perf_event_open(2)), so no such word is in its copy.  A
register that no instruction changes from the pc to the return is there what it was in the caller: that word.
"""

from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.rule import CFA
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import StopReason
from sfsample.unwind.row import UnwindRow, apply_row


def with_popped(snapshot: ThreadSnapshot, table: UnwindRow, code: UnwindRow) -> ThreadSnapshot:
    """Return a copy with the words of the innermost frame that `table` wants, by what `code` says is kept."""
    registers, memory, arch = snapshot.registers, snapshot.memory, snapshot.arch
    caller, witness = (apply_row(row, registers, memory, arch) for row in (table, code))
    if isinstance(caller, StopReason) or isinstance(witness, StopReason) or caller.cfa != witness.cfa:
        return snapshot
    words = [
        BytesMemory(caller.cfa + rule.offset, registers[number].to_bytes(8, arch.byteorder), arch.byteorder)
        for number, rule in table.registers
        if rule.base == CFA and rule.deref and not rule.expression
        if number in code.kept and number in registers and number not in caller.registers
    ]
    pieces = memory.pieces if isinstance(memory, PiecewiseMemory) else (memory,)
    return snapshot._replace(memory=PiecewiseMemory(*pieces, *words)) if words else snapshot
