"""Repairs rows of procedure linkage tables (PLT) that particular versions of ld write wrong.

A repair needs proof that the row is wrong: a shape that no right row has, or the name of the section that the
function lies in.  `SFrameTable.rows` shows the file as it is; `row_at` repairs, and notes it.

Source: the instructions of the stubs, as ld 2.40 to 2.47 assembles them (bfd/elfxx-x86.c).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sfsample.core.arch import AMD64
from sfsample.core.rule import Rule
from sfsample.formats.sframe.rows import SFrameFre

if TYPE_CHECKING:
    from sfsample.formats.sframe.table import SFrameFde, SFrameTable

_SP_8, _SP_16, _SP_24 = (Rule(AMD64.sp, offset, deref=False) for offset in (8, 16, 24))
# rows as (start offset, CFA)
_PLT0_ROWS = ((0, _SP_16), (6, _SP_24))  # push GOT+8; jmp *GOT+16: entered with the index already pushed
_LAZY_ROWS = ((0, _SP_8), (11, _SP_16))  # jmp *GOT (6 bytes); push index (5 bytes); jmp PLT0
_IBT_SECOND_ROW = 9  # start offset; endbr64 (4 bytes); push index (5 bytes); jmp PLT0


def repair(
    table: "SFrameTable", fde: "SFrameFde", rows: Sequence[SFrameFre]
) -> tuple[tuple[SFrameFre, ...], str] | None:
    """Return the right rows and a text that says what was wrong; None: the rows are right."""
    if not 1 <= len(rows) <= 2 or rows[-1].cfa not in (_SP_16, _SP_24) or table.abi.arch is not AMD64:
        return None
    shape = tuple((row.start, row.cfa) for row in rows)
    if fde.masked and len(rows) == 1 and rows[0].cfa == _SP_16:
        # ld 2.44 to 2.47.50.  No right slot is a single row of sp+16, so the section's name is not needed.
        what = f".plt.got at {fde.start:#x} says sp+16, repaired to sp+8"
        return _with_cfa_sp8(rows), what + " (known bug of ld)"
    if table.version > 1:
        return None
    if not fde.masked and shape == _PLT0_ROWS and _lies_in(table, fde, ".plt.sec"):
        what = f"the first slot of .plt.sec at {fde.start:#x} has the rows of PLT0, repaired to sp+8"
        return _with_cfa_sp8(rows), what + " (known bug of ld 2.40)"
    if fde.masked and shape == _LAZY_ROWS and ".plt.sec" in table.sections and _lies_in(table, fde, ".plt"):
        what = f".plt at {fde.start:#x} has endbr64, so its second row begins at 9, not 11: repaired"
        return (rows[0], rows[1]._replace(start=_IBT_SECOND_ROW)), what + " (known bug of ld 2.40)"
    return None


def _with_cfa_sp8(rows: Sequence[SFrameFre]) -> tuple[SFrameFre, ...]:
    """Return the rows as those of a stub that pushes nothing."""
    return tuple(row._replace(cfa=_SP_8) for row in rows)


def _lies_in(table: "SFrameTable", fde: "SFrameFde", name: str) -> bool:
    start, end = table.sections.get(name, (0, 0))
    return start <= fde.start < end
