"""FDEs of `.eh_frame`: pointer encodings, lengths, and the walk of the section."""

import pytest

from sfsample.core.rule import Rule
from sfsample.errors import FormatError
from sfsample.formats.dwarf import eh_frame as module
from sfsample.formats.dwarf.eh_frame import EhFrame
from tests.builders.eh_frame_builder import (
    ABSPTR,
    ALIGNED,
    DATAREL,
    FUNCREL,
    INDIRECT,
    OMIT,
    PCREL,
    SDATA2,
    SDATA4,
    SDATA8,
    SIGNED,
    SLEB128,
    TEXTREL,
    UDATA2,
    UDATA4,
    UDATA8,
    ULEB128,
    EhFrameBuilder,
    def_cfa_offset,
)
from tests.builders.eh_frame_tables import (
    HDR_VADDR,
    SIZE,
    START,
    VADDR,
    one_function,
    two_functions,
)


@pytest.mark.parametrize("byteorder", ["little", "big"])
@pytest.mark.parametrize("application", [ABSPTR, PCREL])
@pytest.mark.parametrize(
    "form", [ABSPTR, ULEB128, UDATA2, UDATA4, UDATA8, SIGNED, SLEB128, SDATA2, SDATA4, SDATA8]
)
def test_fde_start_is_read_in_every_encoding(application, form, byteorder):
    start = (
        0x3000 if application == PCREL else START
    )  # above the section, so that the distance can be unsigned
    eh_frame = one_function(start=start, encoding=application | form, byteorder=byteorder)

    [fde] = eh_frame.fdes()
    assert (fde.start, fde.size) == (start, SIZE)


@pytest.mark.parametrize(
    "encoding",
    [
        OMIT,
        INDIRECT | PCREL | SDATA4,
        TEXTREL | UDATA4,
        FUNCREL | UDATA4,
        DATAREL | UDATA4,
        ALIGNED,
        0x05,
        0x60,
    ],
)
def test_fde_start_of_unsupported_encoding_is_damage(encoding):
    section = EhFrameBuilder(VADDR)
    cie = section.cie(encoding=ABSPTR, augmentation_data=bytes([encoding]))
    section.fde(cie, START, SIZE)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert list(eh_frame.fdes()) == []


def test_pcrel_start_wraps_at_64_bits():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(), (1 << 64) - 0x100 & (1 << 64) - 1, 0x10)

    [fde] = EhFrame(section.terminated(), VADDR, "little").fdes()
    assert fde.start == (1 << 64) - 0x100


def test_discarded_functions_at_0_hide_nothing():
    section = EhFrameBuilder(VADDR)
    cie = section.cie()
    section.fde(cie, 0, 0)
    section.fde(cie, 0, 0x10)
    section.fde(cie, START, SIZE)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert eh_frame.row_at(START) is not None
    assert eh_frame.row_at(0x20) is None


def test_entry_of_extended_length_has_a_4_byte_id():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(extended=True), START, SIZE, def_cfa_offset(16), extended=True)
    row = EhFrame(section.terminated(), VADDR, "little").row_at(START)

    assert row is not None
    assert row.cfa == Rule(7, 16, deref=False)


def test_negative_size_is_damage():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(), START, -4)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert eh_frame.find(START) is None
    assert list(eh_frame.fdes()) == []


def test_walk_ends_at_the_terminator_or_with_the_bytes():
    data = bytes(two_functions().data)

    for tail in (b"", bytes(4), bytes(4) + b"\xff" * 100, b"\xff\xff\xff"):
        eh_frame = EhFrame(data + tail, VADDR, "little")
        assert [fde.start for fde in eh_frame.fdes()] == [START + SIZE, START]


@pytest.mark.parametrize(
    "length", [b"\x03\0\0\0", b"\0\0\0\x10", b"\xff\xff\xff\xff" + b"\xff" * 8, b"\xff\xff\xff\xff\0"]
)
def test_invalid_length_ends_the_walk(length):
    data = bytes(two_functions().data)
    eh_frame = EhFrame(data + length + bytes(3), VADDR, "little")

    assert len(list(eh_frame.fdes())) == 2


@pytest.mark.parametrize("distance", [4, 0x10000, 0xFFFFFFFF])
def test_fde_that_does_not_lead_to_a_cie_is_damage(distance):
    section = two_functions()
    at = section.fde(0, START + 2 * SIZE, SIZE)
    section.data[at + 4 : at + 8] = distance.to_bytes(4, "little")
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert len(list(eh_frame.fdes())) == 2


def test_empty_section_covers_no_address():
    for data in (b"", bytes(4), b"\0\0"):
        assert EhFrame(data, VADDR, "little").row_at(START) is None


def test_memoryviews_are_accepted():
    section = two_functions()
    eh_frame = EhFrame(memoryview(section.data), VADDR, "little", memoryview(section.hdr()), HDR_VADDR)

    assert eh_frame.row_at(START) == one_function().row_at(START)


def test_a_section_without_a_search_table_is_indexed_up_to_a_limit(monkeypatch):
    """Only the first look-up fails, to be reported; what was indexed is used."""
    monkeypatch.setattr(module, "_MAX_INDEXED", 2)  # the CIE and one FDE
    section = EhFrameBuilder(VADDR)
    cie = section.cie()
    for number in range(3):
        section.fde(cie, START + number * SIZE, SIZE)
    frames = EhFrame(section.terminated(), VADDR, "little")
    with pytest.raises(FormatError, match="only the first 2 entries were read"):
        frames.find(START)
    assert frames.find(START).start == START
    assert frames.find(START + SIZE) is None


def test_a_program_that_is_too_long_is_not_executed(monkeypatch):
    """8 MB of them took 2 s for each address of the function."""
    frames = one_function(def_cfa_offset(16) * 2)
    assert frames.row_at(START) is not None
    monkeypatch.setattr(module, "_MAX_PROGRAM_SIZE", 3)
    frames = one_function(def_cfa_offset(16) * 2)
    with pytest.raises(FormatError, match="bytes of instructions are too many"):
        frames.row_at(START)
