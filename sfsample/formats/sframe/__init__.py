"""Reads an SFrame section, V1 to V3, into its tables, and finds the tables that cover an address.

Users import it as `sfsample.sframe` (docs/sframe.md).  `table.py` reads one header and its functions,
`rows.py` decodes the rows for each ABI and repairs known mistakes of linkers, `validate.py` checks a whole
table.  FormatError: `read_tables` raises it for a damaged first header, a look-up for a damaged function.

Invariant: any bytes parse or raise `FormatError` (tests/properties/test_sframe_properties.py).

    tables = read_tables(data, vaddr_of_section)
    for table in tables.covering(vaddr):
        row = table.row_at(vaddr)
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from sfsample.errors import FormatError
from sfsample.formats.sframe.rows import ABIS, Buffer, SFrameAbi, SFrameFre
from sfsample.formats.sframe.table import HEADER_SIZE, MAGICS, SECTION, Flag, SFrameFde, SFrameTable

__all__ = ["ABIS", "HEADER_SIZE", "SECTION", "Flag", "SFrameAbi", "SFrameFde", "SFrameFre", "SFrameTable",
           "SFrameTables", "read_tables"]  # fmt: skip

_MAX_TABLES = 1 << 16  # tables in one section; a linker that concatenates has a table for each object file
_MAX_STEPS_BACK = 64  # functions that a look-up tries, backwards from the last with start <= address


class SFrameTables(tuple[SFrameTable, ...]):  # noqa: SLOT001 - a tuple with slots cannot keep an index
    """The tables of one section: usually one table, but thousands if the linker concatenated tables.

    Concatenated tables are in no order, and may overlap, so the first look-up makes an index of functions.
    """

    def covering(self, vaddr: int) -> Iterator[SFrameTable]:
        """Yield tables with a function at `vaddr`, highest start first; if only one exists, this table."""
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
        """Sorted starts of all functions; function numbers in this order; each table's last number + 1."""
        unsorted = array("Q", (start for table in self for start, _ in table.extents()))
        order = sorted(range(len(unsorted)), key=unsorted.__getitem__)
        totals = list(accumulate(table.num_fdes for table in self))
        return array("Q", map(unsorted.__getitem__, order)), order, totals


def read_tables(
    data: Buffer, address: int, *, machine: tuple[int, str] | None = None,
    executable: Sequence[tuple[int, int]] = (),
) -> SFrameTables:  # fmt: skip
    """Return the tables of a section, at least one.  `address` is the vaddr of the section.

    `SFrameTable` documents the other arguments.  Raises FormatError if the first table is unusable.  If a
    later table is unusable, the `problems` of the last usable table have the reason.
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
                                origin=offset)  # fmt: skip
        except FormatError as damage:
            if not tables:
                raise
            tables[-1].problems.append(f"the table after it, at {offset:#x}, is unusable: {damage}")
            break
        tables.append(table)
        offset += (table.used + 7) & ~7
    return SFrameTables(tables)
