"""A module: addresses, tables that are read on first use, and a word for each that is lost."""

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from tests.builders.eh_frame_builder import AMD64_START, EhFrameBuilder
from tests.builders.elf_builder import PT_GNU_EH_FRAME, PT_GNU_SFRAME, PT_NOTE, Bytes, Load, R, elf, note
from tests.builders.sframe_builder import AARCH64_LE, PCREL, Function, row, section

BIAS, TEXT, SFRAME, HDR, CFI = 0x5555_0000_0000, 0x1000, 0x2000, 0x2F00, 0x3000
PATH = "/lib/x.so"


def module(*segments: Load, sections: list[Bytes] | None = None) -> Module:
    image = ElfImage(elf([Load(TEXT, bytes(range(64))), *segments], sections), PATH)
    return Module(image, BIAS, PATH)


def sframe_segment(*functions: Function, **options) -> Load:
    return Load(SFRAME, section(3, list(functions), address=SFRAME, **options), type=PT_GNU_SFRAME)


def cfi() -> EhFrameBuilder:
    made = EhFrameBuilder(CFI)
    made.fde(made.cie(AMD64_START), TEXT, 0x20)
    return made


def test_addresses():
    made = module()

    assert made.vaddr(BIAS + TEXT) == TEXT
    assert made.address(TEXT) == BIAS + TEXT
    assert repr(made) == "<Module /lib/x.so at 0x555500000000>"


def test_code():
    made = module()

    assert made.code(BIAS + TEXT + 3, 4) == b"\3\4\5\6"
    assert made.code(BIAS + TEXT + 60, 4) == b"\74\75\76\77"
    assert made.code(BIAS + TEXT + 61, 4) is None
    assert made.code(TEXT, 4) is None


def test_build_id():
    assert module().build_id is None
    assert module(Load(0x500, note(b"\xab\xcd"), type=PT_NOTE)).build_id == "abcd"


def test_sframe():
    made = module(sframe_segment(Function(TEXT, 16, [row(0, 8)])))
    [table] = made.sframe

    assert table.row_at(TEXT).cfa.offset == 8
    assert made.sframe is made.sframe
    assert made.problems == []


def test_no_tables():
    made = module()

    assert (made.sframe, made.eh_frame, made.problems) == ((), None, [])


def test_damaged_sframe_is_lost_with_a_word():
    made = module(Load(SFRAME, b"\xe2\xde\x09" + bytes(40), type=PT_GNU_SFRAME))

    assert made.sframe == ()
    assert made.sframe == ()
    assert made.problems == ["/lib/x.so: .sframe+0x2: version 9 is not one of 1, 2, 3"]


def test_sframe_of_another_machine_is_lost():
    made = module(sframe_segment(abi=AARCH64_LE))

    assert made.sframe == ()
    assert "in a file for machine 62" in made.problems[0]


def test_what_a_table_says_of_itself_is_said():
    """Of several tables that a linker left one after another, the second cannot be used."""
    first = section(3, [Function(TEXT, 16, [row(0, 8)])], address=SFRAME, flags=PCREL)
    first += bytes(-len(first) % 8)
    made = module(Load(SFRAME, first + section(3, [], version=9), type=PT_GNU_SFRAME))

    assert len(made.sframe) == 1
    [problem] = made.problems
    assert "the table after it" in problem


def test_field_relative_starts_are_told_by_the_code_of_the_file():
    data = section(2, [Function(TEXT, 16, [row(0, 8)])], address=SFRAME, flags=0, field_relative=True)
    made = module(Load(SFRAME, data, type=PT_GNU_SFRAME))

    assert made.sframe[0].row_at(TEXT).cfa.offset == 8
    assert len(made.problems) == 1


def test_eh_frame_through_its_header():
    made = cfi()
    found = module(
        Load(CFI, made.terminated(), flags=R), Load(HDR, made.hdr(HDR), flags=R, type=PT_GNU_EH_FRAME)
    )

    assert found.eh_frame.find(TEXT).size == 0x20
    assert found.eh_frame is found.eh_frame
    assert found.problems == []


def test_eh_frame_through_its_section():
    """Static programs may have no `.eh_frame_hdr`."""
    found = module(sections=[Bytes(".eh_frame", CFI, cfi().terminated())])

    assert found.eh_frame.find(TEXT).size == 0x20


def test_a_header_that_points_nowhere_loses_the_table():
    found = module(Load(HDR, cfi().hdr(HDR), flags=R, type=PT_GNU_EH_FRAME))

    assert found.eh_frame is None
    assert found.eh_frame is None
    assert found.problems == ["/lib/x.so: .eh_frame_hdr+0x4: points to 0x3000, which is not loaded"]


def test_a_damaged_header_does_not_cost_the_section():
    damaged = Load(HDR, b"\x09" + bytes(11), type=PT_GNU_EH_FRAME)
    found = module(damaged, sections=[Bytes(".eh_frame", CFI, cfi().terminated())])

    assert found.eh_frame is not None
    assert found.eh_frame.find(TEXT) is not None
    assert len(found.problems) == 1


def test_the_same_damage_is_said_once():
    made = module()
    made.lose(FormatError(".sframe", 7, "x"))
    made.lose(FormatError(".sframe", 7, "x"))
    made.lose(FormatError(".sframe", 8, "x"))

    assert len(made.problems) == 2
