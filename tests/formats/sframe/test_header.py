"""SFrame headers: what is accepted, and what raises FormatError."""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.sframe import HEADER_SIZE, Flag, SFrameTable
from tests.builders.sframe_builder import (
    AARCH64_BE,
    AARCH64_LE,
    FRAME_POINTER,
    SORTED,
    Function,
    row,
    section,
)
from tests.builders.sframe_tables import ADDRESS, SP, START, reg, table


def test_auxiliary_header_is_skipped():
    for version in (1, 2, 3):
        made = table(version, [Function(START, 16, [row(0, 8)])], aux=b"future use")
        assert made.row_at(START).cfa == reg(SP, 8)
        assert made.fde_base == HEADER_SIZE + 10


def test_function_table_may_begin_after_a_gap():
    data = bytearray(section(3, [], fdeoff=4, freoff=4)) + bytes(4)

    assert SFrameTable(data, ADDRESS).fde_base == HEADER_SIZE + 4


def test_fixed_ra_offset_may_be_another_slot():
    assert table(3, [], fixed_ra=-16).fixed_ra == -16


def test_frame_pointer_flag_is_accepted():
    assert table(2, [], flags=SORTED | FRAME_POINTER).flags & Flag.FRAME_POINTER


INTACT = [Function(START, 16, [row(0, 8)])]
DAMAGED_HEADERS = {
    "empty": (b"", 0, "0 bytes"),
    "one byte short of a header": (section(3, [])[:27], 0, "27 bytes"),
    "zeros": (bytes(28), 0, "magic"),
    "other magic": (b"\xe2\xdf" + section(3, [])[2:], 0, "magic"),
    "version 0": (section(3, INTACT, version=0), 2, "version 0"),
    "version 4": (section(3, INTACT, version=4), 2, "version 4"),
    "version 255": (section(3, INTACT, version=255), 2, "version 255"),
    "flag 4 in V1": (section(1, INTACT, flags=5), 3, "flags 0x5"),
    "flag 8 in V2": (section(2, INTACT, flags=9), 3, "flags 0x9"),
    "flag 2 in V3": (section(3, INTACT, flags=7), 3, "flags 0x7"),
    "ABI 0": (section(3, INTACT, abi=0), 4, "ABI 0"),
    "ABI 5": (section(3, INTACT, abi=5), 4, "ABI 5"),
    "ABI of the other byte order": (
        section(3, INTACT)[:4] + bytes([AARCH64_BE]) + section(3, INTACT)[5:], 4,
        "AARCH64_BE in little-endian"),
    "fixed FP": (section(3, INTACT, fixed_fp=-16), 5, "fixed FP offset -16"),
    "no fixed RA on AMD64": (section(3, INTACT, fixed_ra=0), 6, "fixed RA offset 0"),
    "positive fixed RA": (section(3, INTACT, fixed_ra=8), 6, "fixed RA offset 8"),
    "odd fixed RA": (section(3, INTACT, fixed_ra=-7), 6, "fixed RA offset -7"),
    "fixed RA where it is tracked": (
        section(3, INTACT, abi=AARCH64_LE, fixed_ra=-8), 6, "fixed RA offset -8 for AARCH64_LE"),
    "auxiliary header past the end": (section(3, INTACT, aux_len=255), 16, "claims"),
    "FDE table past the end": (section(3, INTACT, fdeoff=1 << 31), 8, "1 FDEs need 16 bytes"),
    "overlap of the areas": (section(3, INTACT, freoff=0), 8, "have 0"),
    "OxCaml's 21-byte entries": (section(3, INTACT, freoff=21), 8, "have 21"),
    "too many FDEs": (section(3, INTACT, num_fdes=0xFFFFFFFF), 8, "4294967295 FDEs"),
    "as many FDEs as an offset can reach": (
        section(3, INTACT, num_fdes=0x0FFFFFFF, freoff=0xFFFFFFF0), 16, "claims"),
    "FREs past the end": (section(3, INTACT, fre_len=100), 16, "claims 144 bytes, but has 52"),
    "FREs that wrap": (section(3, INTACT, fre_len=0xFFFFFFFF), 16, "claims"),
    "cut short": (section(3, INTACT)[:-1], 16, "claims 52 bytes, but has 51"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "offset", "what"), DAMAGED_HEADERS.values(), ids=DAMAGED_HEADERS)
def test_damaged_header_raises_format_error(data, offset, what):
    with pytest.raises(FormatError) as raised:
        SFrameTable(data, ADDRESS)

    assert (raised.value.section, raised.value.offset) == (".sframe", offset)
    assert what in raised.value.what


def test_table_of_another_machine_raises_format_error():
    data = section(3, INTACT)

    assert SFrameTable(data, ADDRESS, machine=(62, "little")).num_fdes == 1
    for other in ((183, "little"), (62, "big")):
        with pytest.raises(FormatError) as raised:
            SFrameTable(data, ADDRESS, machine=other)
        assert raised.value.offset == 4


def test_wrong_total_of_rows_is_accepted():
    assert table(3, INTACT, num_fres=77).row_at(START).cfa == reg(SP, 8)
