"""Parses the output of `readelf --sframe`, of every SFrame version and ABI.

Nothing is translated or skipped; a line of unknown form raises AssertionError.  It does not import sfsample,
so that scripts/compare-readelf can use it.
"""

import re
from typing import NamedTuple

FUNCTION = re.compile(
    r"func idx \[(\d+)\]: pc = 0x([0-9a-f]+), size = (\d+) bytes"
    r'(?:, attr = "(\w+)")?(?:, pauth = (B) key)?$'
)
# readelf prints no space between words that fill their column.
WORD = re.compile(r"(?:\((?:sp|fp|r\d+)[+-]\d+\)|(?:sp|fp|c|r\d+)[+-]\d+|[ufU])(?:\[s\])?")
ROW = re.compile(rf"([0-9a-f]{{16}})  ((?:{WORD.pattern}\s*){{3}})$")


class Shown(NamedTuple):
    """A function in readelf's output."""

    start: int
    size: int
    masked: bool
    attributes: str
    rows: list[tuple[int, str, str, str]]  # start address or offset, CFA, FP, RA
    key: str = ""  # "B": return addresses are signed with key B


def parse(text: str) -> tuple[dict[str, str], list[Shown]]:
    """Return the header's lines and the functions."""
    head, _, body = text.partition("Function Index :")
    header = dict(re.findall(r"^\s+([^:\n]+): (.+)$", head.replace(",\n", ","), re.MULTILINE))
    functions: list[Shown] = []
    for line in filter(None, map(str.strip, body.splitlines())):
        if found := FUNCTION.match(line):
            index, start, size, attributes, key = found.groups()
            assert int(index) == len(functions)
            functions.append(Shown(int(start, 16), int(size), False, attributes or "", [], key or ""))
        elif line.startswith("STARTPC"):
            functions[-1] = functions[-1]._replace(masked=line.startswith("STARTPC[m]"))
        elif line.endswith("RA undefined"):
            functions[-1].rows.append((int(line.split()[0], 16), "", "", "undefined"))
        else:
            row = ROW.match(line)
            assert row is not None, line
            cfa, fp, ra = WORD.findall(row[2])
            functions[-1].rows.append((int(row[1], 16), cfa, fp, ra))
    return header, functions
