"""The search table of `.eh_frame_hdr` is used where it is usable."""

import pytest

from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame, eh_frame_address
from tests.builders.eh_frame_builder import (
    ABSPTR,
    DATAREL,
    OMIT,
    PCREL,
    SDATA2,
    SDATA4,
    SDATA8,
    SLEB128,
    UDATA2,
    UDATA4,
    UDATA8,
    EhFrameBuilder,
)
from tests.builders.eh_frame_tables import (
    HDR_VADDR,
    SIZE,
    START,
    VADDR,
    one_function,
    two_functions,
)


def with_hdr(section: EhFrameBuilder, **hdr) -> EhFrame:
    table = section.hdr(HDR_VADDR, **hdr)
    return EhFrame(section.terminated(), VADDR, section.byteorder, table, HDR_VADDR)


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize(
    "encoding",
    [DATAREL | SDATA4, DATAREL | SDATA8, DATAREL | SDATA2, PCREL | SDATA4, ABSPTR, UDATA2, UDATA4, UDATA8],
)
def test_only_search_table_of_the_usual_encoding_is_used(encoding, byteorder):
    section = EhFrameBuilder(VADDR, byteorder)
    cie = section.cie()
    for start in (0x1400, 0x1000, 0x1200):
        section.fde(cie, start, 0x80)
    eh_frame = with_hdr(section, encoding=encoding)

    is_usual = encoding == DATAREL | SDATA4
    assert (eh_frame._table is not None) == is_usual
    for start in (0x1000, 0x1200, 0x1400):
        for vaddr in (start, start + 0x7F):
            found = eh_frame.find(vaddr)
            assert found is not None
            assert found.start == start
        assert eh_frame.find(start - 1) is None
        assert eh_frame.find(start + 0x80) is None
    assert (eh_frame._index is None) == is_usual


@pytest.mark.parametrize(
    "hdr",
    [
        {"encoding": OMIT},
        {"count_encoding": OMIT},
        {"version": 2},
        {"encoding": DATAREL | SLEB128},
        {"encoding": 0x07},
        {"count": 1000},
    ],
)
def test_section_is_walked_without_a_usable_search_table(hdr):
    eh_frame = with_hdr(two_functions(), **hdr)

    assert eh_frame._table is None
    assert eh_frame.row_at(START + SIZE) == one_function().row_at(START)
    assert eh_frame.find(START - 1) is None


def test_truncated_header_is_ignored():
    section = two_functions()
    whole = section.hdr(HDR_VADDR)
    for size in range(len(whole)):
        eh_frame = EhFrame(section.terminated(), VADDR, "little", whole[:size], HDR_VADDR)
        assert eh_frame.find(START) is not None


def test_empty_search_table_covers_no_address():
    assert with_hdr(EhFrameBuilder(VADDR)).find(START) is None


@pytest.mark.parametrize("target", [0, 1 << 20, -0x10000])
def test_search_table_entry_without_an_fde_raises_format_error(target):
    """Offset 0 is the CIE; the others are outside."""
    section = two_functions()
    section.fdes = [(START, target)]

    with pytest.raises(FormatError, match="does not lead to an FDE") as raised:
        with_hdr(section).row_at(START)
    assert raised.value.section == ".eh_frame_hdr"


def test_search_table_entry_of_another_function_gives_no_row():
    section = two_functions()
    section.fdes = [(START, section.fdes[0][1])]

    assert with_hdr(section).row_at(START) is None


@pytest.mark.parametrize("pointer_encoding", [PCREL | SDATA4, ABSPTR, DATAREL | SDATA4, UDATA4])
def test_header_states_the_address_of_eh_frame(pointer_encoding):
    hdr = two_functions().hdr(HDR_VADDR, pointer_encoding=pointer_encoding)

    assert eh_frame_address(hdr, HDR_VADDR, "little") == VADDR


@pytest.mark.parametrize(
    "hdr", [b"", b"\x01", b"\x02\x1b\x03\x3b" + bytes(8), b"\x01\xff\x03\x3b" + bytes(8)]
)
def test_address_in_a_damaged_header_raises_format_error(hdr):
    with pytest.raises(FormatError) as raised:
        eh_frame_address(hdr, HDR_VADDR, "little")
    assert raised.value.section == ".eh_frame_hdr"
    assert 0 <= raised.value.offset <= len(hdr)
