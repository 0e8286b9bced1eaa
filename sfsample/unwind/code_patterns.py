"""Recognizes code by its bytes, and gives the row that holds there.

A pattern quotes instructions, in the notation of `code_pattern`.  Code that no pattern quotes stays unknown,
as nothing is disassembled.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from sfsample.core.stack import Frame
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.stepper import PcRange, only_this_pc

PATTERN_BYTES = 96  # bytes before and after a pc that a pattern may cover
_RANGE_BYTES = 1024  # bytes before and after a pc that `range_without` examines
_AS_REGEX = {"..": ".", "<": "(?P<here>", ">": ")", "(": "(?:", "'": "", " ": ""}
_TOKEN = re.compile(r"\.\.|(?<!,)[0-9a-f]{2}|[<>(' ]")  # token that is written differently in `re`


class CodePattern(NamedTuple):
    """A pattern with a group `here`, and the row that holds in that group."""

    pattern: re.Pattern[bytes]
    row: UnwindRow
    marker: bytes  # bytes that each match contains, for a quick test


def code_pattern(text: str, row: UnwindRow) -> CodePattern:
    """Return an entry of a table of patterns.

    `text` has hexadecimal bytes, and `..` for any byte.  `<` and `>` enclose the addresses at which `row`
    holds, `'` encloses the marker.  `(a|b)`, `[a-b]`, `?` and `{1,9}` are those of regular expressions.
    """
    regex = _TOKEN.sub(lambda token: _AS_REGEX.get(token[0], rf"\x{token[0]}"), text)
    marker = re.search("'(.*)'", text)
    marker_bytes = bytes.fromhex(re.sub("[<>]", "", marker[1])) if marker else b""
    return CodePattern(re.compile(regex.encode(), re.DOTALL), row, marker_bytes)


def row_near(patterns: Iterable[CodePattern], frame: Frame, module: Module) -> UnwindRow | None:
    """Return the row of the first pattern that matches near the pc, with the frame in its group."""
    first, text = module.code_near(frame.pc, PATTERN_BYTES)
    candidates = (entry for entry in patterns if entry.marker in text)
    matches = ((entry.row, match) for entry in candidates for match in entry.pattern.finditer(text))
    return next((row for row, match in matches if _is_in_group(frame, module, match, first)), None)


def row_from(patterns: Iterable[CodePattern], start: int, frame: Frame, module: Module) -> UnwindRow | None:
    """Return the row of the first pattern that matches at address `start`, with the frame in its group."""
    if abs(start - frame.pc) > PATTERN_BYTES:
        return None
    first, text = module.code_near(frame.pc, PATTERN_BYTES)
    if not 0 <= start - first < len(text):
        return None
    matches = ((entry.row, entry.pattern.match(text, start - first)) for entry in patterns)
    return next((row for row, match in matches if match and _is_in_group(frame, module, match, first)), None)


def range_without(markers: Iterable[bytes], frame: Frame, module: Module) -> PcRange:
    """Return a range of addresses around the pc without a marker; only the pc if a marker is near."""
    first, text = module.code_near(frame.pc, _RANGE_BYTES + PATTERN_BYTES)
    if any(marker in text for marker in markers):
        return only_this_pc(frame)
    return max(first, frame.pc - _RANGE_BYTES), min(first + len(text), frame.pc + _RANGE_BYTES)


def _is_in_group(frame: Frame, module: Module, match: re.Match[bytes], first: int) -> bool:
    """Return True if the frame's pc lies in the group `here` of a match in code that starts at `first`.

    A return address may be the end of the group, which follows a call then.  A return address at the start of
    the group usually belongs to the function before, whose last instruction calls.  It belongs to the group
    only if no call precedes it: other code has stored it as a return address.
    """
    pc, begin, end = frame.pc, first + match.start("here"), first + match.end("here")
    if frame.exact:
        return begin <= pc < end
    return begin < pc <= end or (pc == begin and not module.follows_call(pc))
