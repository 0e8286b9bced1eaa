"""How to recover one value of the caller: the common form of SFrame rows and CFI rules."""

from typing import NamedTuple

CFA = -1  # as a rule's base: the frame's CFA instead of a register


class Rule(NamedTuple):
    """How to recover one value: base + offset, or the 8-byte word stored there.

    `base` is a DWARF register number or CFA.  A DWARF expression, where there is one, gives the address
    (`deref`) or the value instead of base + offset.
    """

    base: int
    offset: int
    deref: bool
    expression: bytes = b""
