"""Each version and augmentation of a CIE is read, and a damaged CIE loses only its FDEs."""

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.dwarf.eh_frame import EhFrame
from tests.builders.eh_frame_builder import (
    ABSPTR,
    AMD64_START,
    INDIRECT,
    NOP,
    OMIT,
    PCREL,
    SDATA4,
    SLEB128,
    UDATA8,
    EhFrameBuilder,
    def_cfa_offset,
    offset,
)
from tests.builders.eh_frame_tables import (
    HDR_VADDR,
    RA,
    SIZE,
    START,
    VADDR,
    last_row,
)


@pytest.mark.parametrize("version", [1, 3, 4])
def test_cie_of_version_1_3_or_4_is_read(version):
    assert last_row(offset(3, 2), version=version).rules == {16: RA, 3: Rule(CFA, -16, deref=True)}


def test_return_address_column_is_a_leb128_from_version_3_on():
    assert last_row(b"", version=3, ra_register=300).ra_register == 300


@pytest.mark.parametrize(
    ("augmentation", "data"),
    [
        (b"zR", bytes([ABSPTR])),
        (b"zPLR", bytes([INDIRECT | PCREL | SDATA4]) + bytes(4) + bytes([PCREL | SDATA4, ABSPTR])),
        (b"zPLRSB", bytes([UDATA8]) + bytes(8) + bytes([OMIT, ABSPTR])),
        (b"zPR", bytes([OMIT, ABSPTR])),
        (b"zRP", bytes([ABSPTR, SLEB128, 0x80, 0x01])),
        (b"zR?P", bytes([ABSPTR]) + b"anything"),
    ],
)
def test_augmentation_is_read_or_skipped(augmentation, data):
    row = last_row(def_cfa_offset(16), augmentation=augmentation, augmentation_data=data, encoding=ABSPTR)

    assert row == CfiRow(Rule(7, 16, deref=False), {16: RA}, 16, signal=b"S" in augmentation)


def test_cie_without_augmentation_has_absolute_pointers():
    assert last_row(def_cfa_offset(16), augmentation=b"", encoding=ABSPTR).cfa == Rule(7, 16, deref=False)


def test_lsda_is_skipped():
    section = EhFrameBuilder(VADDR)
    section.fde(section.cie(), START, SIZE, def_cfa_offset(16), lsda=b"\x3f\x3f\x3f\x3f")
    row = EhFrame(section.terminated(), VADDR, "little").row_at(START)

    assert row is not None
    assert row.cfa == Rule(7, 16, deref=False)


@pytest.mark.parametrize(
    ("cie", "what"),
    [
        ({"version": 2}, "version 2"),
        ({"version": 5}, "version 5"),
        ({"version": 4, "address_size": 4}, "addresses of 4 bytes"),
        ({"version": 4, "segment_size": 4}, "segments of 4"),
        ({"augmentation": b"R"}, "augmentation b'R'"),
        ({"augmentation": b"eh"}, "augmentation b'eh'"),
        ({"augmentation_data": b""}, "ends inside"),
        ({"program_of_cie": b"\x3f"}, "unknown instruction"),
        ({"program_of_cie": NOP * 5000}, "not a CIE"),
    ],
)
def test_damaged_cie_loses_only_its_fdes(cie, what):
    section = EhFrameBuilder(VADDR)
    bad = section.cie(
        cie.get("program_of_cie", AMD64_START), **{k: v for k, v in cie.items() if k != "program_of_cie"}
    )
    good = section.cie()
    section.fde(bad, 0x1000, 0x10)
    section.fde(bad, 0x1010, 0x10)
    section.fde(good, 0x1020, 0x10)
    eh_frame = EhFrame(section.terminated(), VADDR, "little")

    assert [fde.start for fde in eh_frame.fdes()] == [0x1020]
    with pytest.raises(FormatError, match=what):
        EhFrame(section.terminated(), VADDR, "little", section.hdr(), HDR_VADDR).row_at(0x1000)
