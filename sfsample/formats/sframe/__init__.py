"""Reads an SFrame section, V1 to V3, into its tables, and finds the tables that cover an address.

Users import it as `sfsample.sframe` (docs/sframe.md).  Next to it: `table` (one header and its functions),
`rows` (what the words of a row mean on each ABI, and known mistakes of linkers) and `validate` (what is wrong
with a whole table).  Damage to the section raises `FormatError` here; damage to a function
raises it when that function is read.

Invariant: any bytes parse or raise `FormatError` (tests/properties/test_sframe_properties.py).

    tables = read_tables(data, vaddr_of_section)
    for table in tables.covering(vaddr):
        row = table.row_at(vaddr)
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate

from sfsample.errors import FormatError
from sfsample.formats.sframe.rows import ABIS, Buffer, SFrameAbi, SFrameFre
from sfsample.formats.sframe.table import HEADER_SIZE, MAGICS, SECTION, Flag, SFrameFde, SFrameTable

__all__ = ["ABIS", "HEADER_SIZE", "SECTION", "Flag", "SFrameAbi", "SFrameFde", "SFrameFre", "SFrameTable",
           "SFrameTables", "read_tables"]  # fmt: skip

_MAX_TABLES = 1 << 16  # in one section; a linker that concatenates writes one per object file
_MAX_STEPS_BACK = 64  # functions before an address, of all tables, that are checked whether they cover it


class SFrameTables(tuple[SFrameTable, ...]):  # noqa: SLOT001 - a tuple with slots cannot keep an index
    """The tables of one section: usually one; thousands where a linker concatenated.

    The functions of several tables interleave, so one index of all functions is needed.  The first look-up
    makes it, as concatenated tables are not sorted.
    """

    def covering(self, vaddr: int) -> Iterator[SFrameTable]:
        """Yield the tables that have a function at `vaddr`, the one that starts last first."""
        if len(self) == 1:
            yield self[0]
            return
        starts, order, totals = self._index
        seen = set()
        position = bisect_right(starts, vaddr) - 1
        for candidate in range(position, max(-1, position - _MAX_STEPS_BACK), -1):
            number = bisect_right(totals, order[candidate])
            table = self[number]
            first = totals[number - 1] if number else 0
            if vaddr - starts[candidate] < table.size(order[candidate] - first) and number not in seen:
                seen.add(number)
                yield table

    @cached_property
    def _index(self) -> "tuple[array[int], list[int], list[int]]":
        """Return sorted starts, the function number of each, and the running total of functions by table."""
        unsorted = array("Q", (start for table in self for start, _ in table.extents()))
        order = sorted(range(len(unsorted)), key=unsorted.__getitem__)
        return (
            array("Q", map(unsorted.__getitem__, order)),
            order,
            list(accumulate(table.num_fdes for table in self)),
        )


def read_tables(
    data: Buffer,
    address: int,
    *,
    machine: tuple[int, str] | None = None,
    executable: Sequence[tuple[int, int]] = (),
    sections: Mapping[str, tuple[int, int]] | None = None,
) -> SFrameTables:
    """Return every table of a section, at least one; `address` is the vaddr of the section.

    The other arguments are those of `SFrameTable`.  Raises FormatError when the first table is unusable;
    where a later one is, `problems` of the table before it says so.
    """
    view = memoryview(data).cast("B")
    tables: list[SFrameTable] = []
    offset = 0
    while not tables or bytes(view[offset : offset + 2]) in MAGICS:
        if len(tables) == _MAX_TABLES:
            tables[-1].problems.append(f"more than {_MAX_TABLES} tables: the rest is not read")
            break
        try:
            table = SFrameTable(view[offset:], address + offset, machine=machine, executable=executable,
                                sections=sections, origin=offset)  # fmt: skip
        except FormatError as damage:
            if not tables:
                raise
            tables[-1].problems.append(f"the table after it, at {offset:#x}, is unusable: {damage}")
            break
        tables.append(table)
        offset += (table.used + 7) & ~7
    return SFrameTables(tables)
