"""Keeps a shadow call stack: the callers of a thread, recorded while it calls and returns.

It knows no architecture and unwinds nothing: `stepping` and `emulated` step a program and report its calls.
"""

from pathlib import Path
from typing import NamedTuple

from sfsample.core.snapshot import ThreadSnapshot
from sfsample.modules.mapping import Mapping
from sfsample.unwind.row import Caller, UnwindRow, apply_row
from tests.builders.maps import parse_maps


class Entry(NamedTuple):
    """The caller of a frame: it is there while sp is not above `slot`, the word with the return address.

    Where calls push nothing, `slot` is the sp of the caller.  A frame that a signal interrupted has slot 0,
    and its pc is one of the two words at `saved`.
    """

    slot: int
    pc: int
    sp: int  # of the caller
    saved: int = 0


class Stacks:
    """The stacks of one thread, each with its entries, outermost first.

    The key of a stack is any number that belongs to it alone.
    """

    def __init__(self) -> None:
        self._entries: dict[int, list[Entry]] = {}
        self._interrupted: dict[Entry, int] = {}  # signal entry -> the stack that it interrupted

    def leave(self, stack: int, sp: int) -> bool:
        """Drop the frames below `sp`, those of a signal too; return whether there were any."""
        entries, before = self.on(stack), len(self.on(stack))
        while entries and 0 < (entries[-1].slot or entries[-1].saved) < sp:
            entries.pop()
        return len(entries) < before

    def on(self, stack: int) -> list[Entry]:
        return self._entries.setdefault(stack, [])

    def interrupt(self, stack: int, entry: Entry, interrupted: int) -> None:
        self.on(stack).append(entry)
        self._interrupted[entry] = interrupted

    def return_from_signal(self, stack: int) -> None:
        entries = self.on(stack)
        while entries and entries[-1].slot:
            entries.pop()
        entries.pop()

    def chain(self, stack: int) -> tuple[Entry, ...]:
        """Return the callers of the innermost function on a stack, innermost first."""
        found: list[Entry] = []
        for entry in reversed(self.on(stack)):
            found.append(entry)
            if entry in self._interrupted and self._interrupted[entry] != stack:
                return (*found, *self.chain(self._interrupted[entry]))
        return tuple(found)


class Mappings:
    """The mappings of a process; read again for an unknown address, since stacks and libraries may be new."""

    def __init__(self, pid: int) -> None:
        self._maps = Path(f"/proc/{pid}/maps")
        self._known: tuple[Mapping, ...] = ()

    def at(self, address: int) -> Mapping | None:
        for _ in range(2):
            for mapping in self._known:
                if mapping.start <= address < mapping.end:
                    return mapping
            self._known = parse_maps(self._maps.read_text())
        return None


def caller_by(row: UnwindRow, snapshot: ThreadSnapshot) -> object:
    """Return (pc, sp) of the caller by one row; None if the row or a return address of 0 ends the stack."""
    if row.ra is None:
        return None
    arch = snapshot.arch
    caller = apply_row(row, snapshot.registers, snapshot.memory, arch)
    if not isinstance(caller, Caller):
        return caller
    return (caller.registers[arch.pc], caller.registers[arch.sp]) if caller.registers[arch.pc] else None
