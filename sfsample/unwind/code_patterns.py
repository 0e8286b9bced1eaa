"""Code that is known by its bytes, and the row that holds there.

Law: a pattern quotes instructions, and its group `here` is where the row holds.  What is not quoted is not
known; nothing is disassembled.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.core.stack import Frame
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import PcRange, here

REACH = 96  # bytes before and after a pc that a pattern may span
_FAR = 1024


class Code(NamedTuple):
    """A pattern with a group `here`, and the row that holds in it."""

    pattern: re.Pattern[bytes]
    row: UnwindRow
    sign: bytes  # that are in whatever it matches


def code(pattern: bytes, row: UnwindRow, sign: bytes = b"") -> Code:
    """Return an entry of a table."""
    return Code(re.compile(pattern, re.DOTALL), row, sign)


def row_among(codes: Iterable[Code], frame: Frame, module: Module) -> UnwindRow | None:
    """Return the row of the first pattern, anywhere near the pc, that has the frame in its group."""
    first, text = module.code_near(frame.pc, REACH)
    found = (known for known in codes if known.sign in text)
    matches = ((known.row, match) for known in found for match in known.pattern.finditer(text))
    return next((row for row, match in matches if _is_in(frame, module, match, first)), None)


def reach_without(signs: Iterable[bytes], frame: Frame, module: Module) -> PcRange:
    """Return the addresses around a pc of which no sign is near; the pc alone if one is."""
    first, text = module.code_near(frame.pc, _FAR + REACH)
    if any(sign in text for sign in signs):
        return here(frame)
    return max(first, frame.pc - _FAR), min(first + len(text), frame.pc + _FAR)


def row_at(codes: Iterable[Code], start: int, frame: Frame, module: Module) -> UnwindRow | None:
    """Return the row of the first pattern that begins at `start` and has the frame in its group."""
    first, text = module.code_near(frame.pc, REACH) if abs(start - frame.pc) <= REACH else (0, b"")
    if not 0 <= start - first < len(text):
        return None
    matches = ((known.row, known.pattern.match(text, start - first)) for known in codes)
    return next((row for row, match in matches if match and _is_in(frame, module, match, first)), None)


def _is_in(frame: Frame, module: Module, match: re.Match[bytes], first: int) -> bool:
    """Whether the frame is in the group.

    A return address may be the end, behind a call; it is the beginning only where a return was prepared
    without a call, or else it belongs to the function before, whose last instruction calls.
    """
    pc, begin, end = frame.pc, first + match.start("here"), first + match.end("here")
    if frame.exact:
        return begin <= pc < end
    return begin < pc <= end or (pc == begin and not module.follows_call(pc))
