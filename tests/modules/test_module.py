"""Module: its addresses, and tables that are read on first use or reported as damaged."""

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from tests.builders.eh_frame_builder import AMD64_START, EhFrameBuilder
from tests.builders.elf_builder import PT_GNU_EH_FRAME, PT_GNU_SFRAME, PT_NOTE, Bytes, Load, R, elf, note
from tests.builders.sframe_builder import AARCH64_LE, PCREL, Function, row, section

BIAS, TEXT, SFRAME, HDR, CFI = 0x5555_0000_0000, 0x1000, 0x2000, 0x2F00, 0x3000
PATH = "/lib/x.so"


def make_module(*segments: Load, sections: list[Bytes] | None = None) -> Module:
    image = ElfImage(elf([Load(TEXT, bytes(range(64))), *segments], sections), PATH)
    return Module(image, BIAS, PATH)


def sframe_segment(*functions: Function, **options) -> Load:
    return Load(SFRAME, section(3, list(functions), address=SFRAME, **options), type=PT_GNU_SFRAME)


def eh_frame_builder() -> EhFrameBuilder:
    builder = EhFrameBuilder(CFI)
    builder.fde(builder.cie(AMD64_START), TEXT, 0x20)
    return builder


def test_address_and_vaddr_differ_by_the_load_bias():
    module = make_module()

    assert module.vaddr(BIAS + TEXT) == TEXT
    assert module.address(TEXT) == BIAS + TEXT
    assert repr(module) == "<Module /lib/x.so at 0x555500000000>"


def test_code_is_read_from_the_file_within_its_segment():
    module = make_module()

    assert module.code(BIAS + TEXT + 3, 4) == b"\3\4\5\6"
    assert module.code(BIAS + TEXT + 60, 4) == b"\74\75\76\77"
    assert module.code(BIAS + TEXT + 61, 4) is None
    assert module.code(TEXT, 4) is None


def test_build_id_is_hexadecimal_or_none():
    assert make_module().build_id is None
    assert make_module(Load(0x500, note(b"\xab\xcd"), type=PT_NOTE)).build_id == "abcd"


def test_sframe_is_read_once():
    module = make_module(sframe_segment(Function(TEXT, 16, [row(0, 8)])))
    [table] = module.tables.sframe

    assert table.row_at(TEXT).cfa.offset == 8
    assert module.tables.sframe is module.tables.sframe
    assert module.problems == []


def test_a_module_without_tables_has_no_problems():
    module = make_module()

    assert (module.tables.sframe, module.tables.eh_frame, module.problems) == ((), None, [])


def test_damaged_sframe_is_dropped_and_reported():
    module = make_module(Load(SFRAME, b"\xe2\xde\x09" + bytes(40), type=PT_GNU_SFRAME))

    assert module.tables.sframe == ()
    assert module.tables.sframe == ()
    assert module.problems == ["/lib/x.so: .sframe+0x2: version 9 is not one of 1, 2, 3"]


def test_sframe_of_another_machine_is_dropped():
    module = make_module(sframe_segment(abi=AARCH64_LE))

    assert module.tables.sframe == ()
    assert "in a file for machine 62" in module.problems[0]


def test_problems_of_an_sframe_table_are_reported():
    """A linker left several tables one after another; the second cannot be used."""
    first = section(3, [Function(TEXT, 16, [row(0, 8)])], address=SFRAME, flags=PCREL)
    first += bytes(-len(first) % 8)
    module = make_module(Load(SFRAME, first + section(3, [], version=9), type=PT_GNU_SFRAME))

    assert len(module.tables.sframe) == 1
    [problem] = module.problems
    assert "the table after it" in problem


def test_field_relative_starts_are_recognized_by_the_code_of_the_file():
    data = section(2, [Function(TEXT, 16, [row(0, 8)])], address=SFRAME, flags=0, field_relative=True)
    module = make_module(Load(SFRAME, data, type=PT_GNU_SFRAME))

    assert module.tables.sframe[0].row_at(TEXT).cfa.offset == 8
    assert len(module.problems) == 1


def test_eh_frame_is_found_by_its_header():
    builder = eh_frame_builder()
    module = make_module(
        Load(CFI, builder.terminated(), flags=R), Load(HDR, builder.hdr(HDR), flags=R, type=PT_GNU_EH_FRAME)
    )

    assert module.tables.eh_frame.find(TEXT).size == 0x20
    assert module.tables.eh_frame is module.tables.eh_frame
    assert module.problems == []


def test_eh_frame_is_found_by_its_section():
    """Static programs may have no `.eh_frame_hdr`."""
    module = make_module(sections=[Bytes(".eh_frame", CFI, eh_frame_builder().terminated())])

    assert module.tables.eh_frame.find(TEXT).size == 0x20


def test_eh_frame_is_dropped_when_its_header_points_nowhere():
    module = make_module(Load(HDR, eh_frame_builder().hdr(HDR), flags=R, type=PT_GNU_EH_FRAME))

    assert module.tables.eh_frame is None
    assert module.tables.eh_frame is None
    assert module.problems == ["/lib/x.so: .eh_frame_hdr+0x4: points to 0x3000, which is not loaded"]


def test_eh_frame_is_found_by_its_section_when_its_header_is_damaged():
    damaged = Load(HDR, b"\x09" + bytes(11), type=PT_GNU_EH_FRAME)
    module = make_module(damaged, sections=[Bytes(".eh_frame", CFI, eh_frame_builder().terminated())])

    assert module.tables.eh_frame is not None
    assert module.tables.eh_frame.find(TEXT) is not None
    assert len(module.problems) == 1


def test_the_same_damage_is_reported_once():
    module = make_module()
    module.note_damage(FormatError(".sframe", 7, "x"))
    module.note_damage(FormatError(".sframe", 7, "x"))
    module.note_damage(FormatError(".sframe", 8, "x"))

    assert len(module.problems) == 2
