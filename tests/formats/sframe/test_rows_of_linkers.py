"""Rows of PLTs that particular linkers write wrong are repaired or left out in look-ups.

`data/sframe-ibtplt-v1.json` is what ld 2.40 wrote with `-z ibtplt`, with the bytes of two of its stubs.
"""

import json
from pathlib import Path

import pytest

from sfsample.formats.sframe import SFrameTable
from tests.builders.sframe_builder import Function, row, section

IBT = json.loads((Path(__file__).parents[2] / "data" / "sframe-ibtplt-v1.json").read_text())
SECTIONS = {name: tuple(extent) for name, extent in IBT["sections"].items()}
PLT, PLT_SEC = SECTIONS[".plt"][0], SECTIONS[".plt.sec"][0]
ADDRESS, START = 0x2000, 0x1000


def ibt_table() -> SFrameTable:
    return SFrameTable(bytes.fromhex(IBT["hex"]), IBT["section_addr"])


def offsets(table: SFrameTable, start: int, *at: int) -> list[int | None]:
    return [(found := table.row_at(start + a)) and found.cfa.offset for a in at]


def test_code_of_ibt_stubs_pushes_at_byte_9_or_never():
    """endbr64; push: sp+16 from 9 on.  endbr64; jmp: sp+8 throughout."""
    slot, second = (bytes.fromhex(IBT["code"][hex(at)]) for at in (PLT + 16, PLT_SEC))

    assert slot[:5] == b"\xf3\x0f\x1e\xfa\x68"
    assert slot[9] == 0xE9
    assert second[:6] == b"\xf3\x0f\x1e\xfa\xff\x25"


def test_v1_rows_of_stubs_are_left_out():
    """ld writes the rows of stubs without endbr64; the rows of PLT0, which are right, look alike."""
    table = ibt_table()

    assert offsets(table, PLT_SEC, 0, 4, 6, 10) == [None] * 4
    assert offsets(table, PLT_SEC, 16, 20, 47, 48) == [8, 8, 8, None]  # ld covers no more
    assert offsets(table, PLT + 16, 0, 4, 8, 9, 15, 16, 25) == [None] * 7
    assert offsets(table, PLT, 0, 6) == [None, None]
    assert table.check() == []


@pytest.mark.parametrize("version", [2, 3])
def test_rows_of_linkers_after_2_40_are_not_changed(version):
    rows = [row(0, 16), row(6, 24)]
    data = section(version, [Function(START, 16, rows)], address=ADDRESS)
    table = SFrameTable(data, ADDRESS)

    assert offsets(table, START, 0, 6) == [16, 24]


def test_rows_are_not_repaired():
    table = ibt_table()
    by_start = {fde.start: [r.cfa.offset for r in table.rows(fde)] for fde in table.fdes()}

    assert by_start[PLT_SEC] == [16, 24]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("block", [8, 16])
def test_plt_got_row_of_sp_16_is_repaired(version, block):
    data = section(version, [Function(START, 4 * block, [row(0, 16)], repeat=block)], address=ADDRESS)
    table = SFrameTable(data, ADDRESS)

    [finding] = table.check()
    assert finding.startswith(".plt.got at 0x1000 says sp+16, repaired to sp+8")
    assert offsets(table, START, 0, block + 2) == [8, 8]
    assert table.check() == [finding]
