"""Defines the rule that recovers one value of the caller: the common form of SFrame rows and CFI rules."""

from typing import NamedTuple

CFA = -1  # `base` of a rule with an offset from the frame's CFA instead of a register


class Rule(NamedTuple):
    """A rule for one value of the caller."""

    base: int  # DWARF register number, or CFA
    offset: int  # bytes
    deref: bool  # False: value = base + offset; True: value = the 8-byte word at that address
    expression: bytes = b""  # DWARF expression that gives the address or value instead of base + offset
