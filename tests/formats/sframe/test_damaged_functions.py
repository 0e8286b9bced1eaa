"""Damage to one function of an SFrame table leaves the other functions usable."""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.sframe import HEADER_SIZE
from tests.builders.sframe_builder import (
    FDE_SIZE,
    Function,
    row,
)
from tests.builders.sframe_tables import SP, START, VERSIONS, reg, table

FRE_BASE = {version: HEADER_SIZE + 2 * FDE_SIZE[version] for version in (1, 2, 3)}
DAMAGED = Function(START, 16, [row(0, 8), row(4, 16)])
DAMAGE = {
    "rows outside the area": DAMAGED._replace(fre_off=1 << 31),
    "last row outside the area": DAMAGED._replace(num_fres=7),
    "more rows than fit": DAMAGED._replace(num_fres=0xFFFF),
    "FRE type 3": DAMAGED._replace(info=3),
    "FRE type 15": DAMAGED._replace(info=15),
    "rows that go back": DAMAGED._replace(rows=[row(4, 8), row(0, 16)]),
    "word size 3": DAMAGED._replace(rows=[row(0, 8)._replace(mangled=True, count=0x30 | 1)]),
}


@VERSIONS
@pytest.mark.parametrize("damaged", DAMAGE.values(), ids=DAMAGE)
def test_damaged_function_leaves_other_functions_usable(version, damaged):
    made = table(version, [damaged, Function(START + 16, 16, [row(0, 24)])])

    with pytest.raises(FormatError) as raised:
        made.row_at(START)
    assert raised.value.section == ".sframe"
    assert raised.value.offset >= FRE_BASE[version]
    assert made.row_at(START + 16).cfa == reg(SP, 24)


def test_row_that_ends_outside_the_area_raises_format_error():
    made = table(3, [Function(START, 16, [row(0, 8), row(4, 8, count=6)])])

    with pytest.raises(FormatError, match="row ends outside") as raised:
        made.row_at(START)
    assert raised.value.offset == HEADER_SIZE + FDE_SIZE[3] + 5 + 3 + 2


def test_row_that_begins_outside_the_area_raises_format_error():
    """The count fits by the smallest row, but the rows before were longer."""
    made = table(3, [Function(START, 16, [row(0, 8, -16, width=4)], num_fres=3)])

    with pytest.raises(FormatError, match="row outside the FRE area"):
        made.row_at(START)


@pytest.mark.parametrize("version", [1, 2])
def test_huge_row_count_raises_format_error(version):
    made = table(version, [DAMAGED._replace(num_fres=0xFFFFFFFF)])

    with pytest.raises(FormatError, match="4294967295 rows do not fit"):
        made.row_at(START)


def test_reserved_function_type_raises_format_error():
    made = table(3, [DAMAGED._replace(info2=2), Function(START + 16, 16, [row(0, 24)])])

    with pytest.raises(FormatError, match="FDE type 2"):
        made.row_at(START)
    assert made.row_at(START + 16).cfa == reg(SP, 24)


def test_attribute_outside_the_area_damages_one_function():
    made = table(3, [Function(START, 16, [], fre_off=1 << 20), Function(START + 16, 16, [row(0, 24)])])

    with pytest.raises(FormatError, match="attribute outside") as raised:
        made.row_at(START)
    assert raised.value.offset == FRE_BASE[3] + (1 << 20)
    assert made.row_at(START + 16).cfa == reg(SP, 24)
    assert [f.start for f in made.fdes()] == [START + 16]
    assert len(made.problems) == 1


def test_attribute_may_end_with_the_area_but_not_after_it():
    functions = [Function(START, 16, []), Function(START + 16, 16, [row(0, 8)], fre_off=0)]  # 5 + 5 + 3 bytes
    shared = [functions[0], functions[1]._replace(fre_off=8)]
    beyond = [functions[0], functions[1]._replace(fre_off=9)]

    assert table(3, functions).row_at(START + 16).cfa is None  # the first function's: outermost
    assert next(iter(table(3, shared).fdes())).num_fres == 0
    assert table(3, shared).find(START + 16) is not None
    with pytest.raises(FormatError, match="attribute outside"):
        table(3, beyond).find(START + 16)


def test_unused_bits_are_ignored():
    """Info bit 6, and bit 7 before V3, are unused; rep_size of a function that does not repeat as well."""
    for version in (1, 2):
        made = table(version, [Function(START, 16, [row(0, 8)], info=0xC0, repeat=16)])
        assert made.row_at(START + 9).cfa == reg(SP, 8)
        assert not next(made.fdes()).signal
    made = table(3, [Function(START, 16, [row(0, 8)], info=0x40, info2=0xE0)])
    assert made.row_at(START).cfa == reg(SP, 8)
    assert not made.row_at(START).signal
