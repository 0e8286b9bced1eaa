"""Rows of `.debug_frame`, in each of its versions; a compressed section is not read."""

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.rule import Rule
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.dwarf.eh_frame import EhFrame
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.unwind.steppers.cfi import CfiStepper
from tests.builders.debug_frame_builder import SIZE, START, section
from tests.builders.eh_frame_builder import advance_loc, def_cfa_offset
from tests.builders.elf_builder import Bytes, Load, elf

SP = 7
SHF_COMPRESSED = 0x800


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_debug_frame_rows(wide, version):
    table = EhFrame(section(wide=wide, version=version), 0, "little", debug=True)

    assert [(fde.start, fde.size) for fde in table.fdes()] == [(START, SIZE), (START + SIZE, SIZE)]
    assert [table.row_at(START + at).cfa.offset for at in (0, 3, 4, SIZE - 1)] == [8, 8, 32, 32]
    assert table.row_at(START - 1) is None
    assert table.row_at(START + 2 * SIZE) is None


def test_damage_names_section():
    table = EhFrame(section()[:-4], 0, "little", debug=True)

    assert [fde.start for fde in table.fdes()] == [START]
    lost = section().replace(advance_loc(4) + def_cfa_offset(32), b"\x3f" + def_cfa_offset(32))
    with pytest.raises(FormatError, match=r"\.debug_frame\+"):
        EhFrame(lost, 0, "little", debug=True).row_at(START)


def make_module(name: str, data: bytes, flags: int = 0) -> Module:
    image = elf([Load(START, bytes(4 * SIZE))], [Bytes(name, 0, data, flags=flags)])
    return Module(ElfImage(image, "invented"), 0, "/lib/invented.so")


def test_stepper_reads_the_section():
    module = make_module(".debug_frame", section())
    frame = Frame(START + 8, 0, None, Found.CONTEXT, exact=True)
    row = CfiStepper(debug=True).row_at(frame, module, AMD64)

    assert (row.cfa, module.problems) == (Rule(SP, 32, deref=False), [])
    assert CfiStepper(debug=True).row_at(frame._replace(pc=START + 3 * SIZE), module, AMD64) is None


def test_compressed_section_is_not_read():
    module = make_module(".debug_frame", section(), SHF_COMPRESSED)
    frame = Frame(START, 0, None, Found.CONTEXT, exact=True)

    assert CfiStepper(debug=True).row_at(frame, module, AMD64) is None
    assert module.problems == []


def test_module_without_debug_frame():
    bare = Module(ElfImage(elf([Load(START, bytes(64))]), "bare"), 0, "/bare")

    stepper, frame = CfiStepper(debug=True), Frame(START, 0, None, Found.CONTEXT, exact=True)
    assert stepper.row_at(frame, bare, AMD64) is None
    assert stepper.row_at(frame, None, AMD64) is None
