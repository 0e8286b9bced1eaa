"""Defines how one value of the caller is recovered: the common form of SFrame rows and CFI rules."""

from typing import NamedTuple

CFA = -1  # the `base` of a rule that counts from the frame's CFA instead of a register


class Rule(NamedTuple):
    """A value of the caller: base + offset, or the 8-byte word stored there (`deref`)."""

    base: int  # a DWARF register number, or CFA
    offset: int  # bytes
    deref: bool
    expression: bytes = b""  # a DWARF expression that replaces base + offset; b"": none
