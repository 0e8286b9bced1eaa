"""Defines the rule that recovers one value of the caller, for SFrame rows and for CFI rules."""

from typing import NamedTuple

CFA = -1  # `base` of a rule whose offset counts from the frame's CFA, not from a register


class Rule(NamedTuple):
    """A rule for one value of the caller."""

    base: int  # DWARF register number, or CFA
    offset: int  # bytes
    deref: bool  # False: value = base + offset; True: value = the 8-byte word at base + offset
    expression: bytes = b""  # DWARF expression that gives the address or value instead of base + offset
