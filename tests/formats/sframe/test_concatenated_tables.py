"""SFrame sections with several tables, as linkers that concatenate write them."""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.sframe import read_tables
from tests.builders.sframe_builder import (
    PCREL,
    Function,
    row,
    section,
)
from tests.builders.sframe_tables import ADDRESS, SP, START, reg


def concatenated(*tables: bytes) -> bytes:
    return b"".join(t + bytes(-len(t) % 8) for t in tables)


def test_concatenated_tables_are_all_read():
    first = section(2, [Function(0x1000, 16, [row(0, 8)])], flags=PCREL, address=ADDRESS)
    second_address = ADDRESS + len(concatenated(first))
    second = section(3, [Function(0x1010, 16, [row(0, 24)])], address=second_address)
    tables = read_tables(concatenated(first, second), ADDRESS)

    assert [t.version for t in tables] == [2, 3]
    assert [t.address for t in tables] == [ADDRESS, second_address]
    assert [next(t.fdes()).start for t in tables] == [0x1000, 0x1010]
    assert [t.problems for t in tables] == [[], []]


def test_bytes_after_the_last_table_are_ignored():
    """GNU ld states too many bytes for PT_GNU_SFRAME when there are PLT rows; the rest is zero."""
    data = section(3, [Function(START, 16, [row(0, 8)])])

    [made] = read_tables(data + bytes(50), ADDRESS)
    assert made.used == len(data)
    assert len(read_tables(data + b"something else", ADDRESS)) == 1


def test_unusable_later_table_is_a_problem_of_the_table_before():
    first = section(3, [Function(START, 16, [row(0, 8)])])
    [made] = read_tables(concatenated(first, section(3, [], version=9)), ADDRESS)

    [problem] = made.problems
    assert f"at {len(concatenated(first)):#x}" in problem
    assert "version 9" in problem
    assert made.row_at(START).cfa == reg(SP, 8)


def test_unusable_first_table_raises_format_error():
    with pytest.raises(FormatError):
        read_tables(b"", ADDRESS)
