"""Decodes the location table of a code object.  Source: CPython's Objects/locations.md, cpython/code.h."""

from itertools import accumulate

_NO_LOCATION, _LONG, _NO_COLUMNS = 15, 14, 13
_ONE_LINE = (10, 12)  # kinds whose line is: previous line + kind - 10
_MAX_SHIFT = 36  # bits; a number has at most 32 bits
_LONG_VARINTS = 4  # numbers in an entry of the kind _LONG; the first number is the step to the line


def decode(table: bytes, line: int, units: int) -> tuple[list[int], list[int | None]]:
    """Return (end in units of 2 bytes, line) of each entry.  Raises ValueError if the table is damaged."""
    counts: list[int] = []
    lines: list[int | None] = []
    at, size = 0, len(table)
    while at < size:
        first = table[at]
        if first < 0x80:  # bit 7 is set only in the first byte of an entry
            raise ValueError(f"no entry begins at byte {at}")
        kind, at = first >> 3 & 15, at + 1
        if kind >= _NO_COLUMNS:
            if kind != _NO_LOCATION:
                step, at = _signed(table, at)
                line += step
                for _ in range((_LONG_VARINTS - 1) * (kind == _LONG)):
                    _, at = _varint(table, at)
        elif kind >= _ONE_LINE[0]:
            line, at = line + kind - _ONE_LINE[0], at + 2
        else:
            at += 1
        if at > size:
            raise ValueError("the last entry is cut off")
        counts.append((first & 7) + 1)
        lines.append(None if kind == _NO_LOCATION else line)
    ends = [*accumulate(counts)]
    if sum(counts) != units:
        raise ValueError(f"the entries describe {sum(counts)} units instead of {units}")
    return ends, lines


def _varint(table: bytes, at: int) -> tuple[int, int]:
    """Return a number and the position after it.  A byte has 6 bits of the number; bit 6: a byte follows."""
    value = shift = 0
    while at < len(table):
        byte = table[at]
        value |= (byte & 0x3F) << shift  # low bits first
        at, shift = at + 1, shift + 6
        if not byte & 0x40:
            return value, at
        if shift > _MAX_SHIFT:
            break
    raise ValueError("a number in the line table does not end")


def _signed(table: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(table, at)
    return -(value >> 1) if value & 1 else value >> 1, at
