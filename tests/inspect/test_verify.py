"""Coverage and agreement of unwind tables, on files made for it."""

from sfsample.core.rule import Rule
from sfsample.formats.elf.image import ElfImage
from sfsample.inspect.coverage import cover, intersect, merge
from sfsample.inspect.verify import verify
from sfsample.modules.module import Module
from tests.builders.eh_frame_builder import AMD64_START, EhFrameBuilder
from tests.builders.elf_builder import PT_GNU_EH_FRAME, PT_GNU_SFRAME, Load, R, elf
from tests.builders.sframe_builder import Function, row, section

TEXT, SFRAME, HDR, CFI = 0x1000, 0x2000, 0x2F00, 0x3000


def module(functions: list[Function], cfi: list[tuple[int, int]], text: int = 0x100) -> Module:
    frames = EhFrameBuilder(CFI)
    cie = frames.cie(AMD64_START)
    for start, size in cfi:
        frames.fde(cie, start, size)
    loads = [Load(TEXT, bytes(text))]
    if functions:
        loads.append(Load(SFRAME, section(3, functions, address=SFRAME), type=PT_GNU_SFRAME))
    if cfi:
        loads.append(Load(CFI, frames.terminated(), flags=R))
        loads.append(Load(HDR, frames.hdr(HDR), flags=R, type=PT_GNU_EH_FRAME))
    return Module(ElfImage(elf(loads), "/lib/x.so"), 0, "/lib/x.so")


def entry(start: int, size: int, cfa: int = 8) -> Function:
    return Function(start, size, [row(0, cfa)])


def test_shares_are_of_the_code():
    found = cover(module([entry(TEXT, 0x40)], [(TEXT, 0x40), (TEXT + 0x80, 0x20)]))

    assert (found.text, found.sframe, found.eh_frame, found.neither) == (0x100, 0x40, 0x60, 0xA0)
    assert found.eh_frame_fdes == 2
    assert found.dropped == ((TEXT + 0x80, TEXT + 0xA0),)
    assert found.share(found.sframe) == 0.25


def test_what_lies_outside_the_code_gains_nothing():
    found = cover(module([entry(TEXT - 0x20, 0x40), entry(TEXT + 0xF0, 0x1000)], []))

    assert found.sframe == 0x20 + 0x10


def test_a_module_without_tables():
    found = cover(module([], []))

    assert (found.sframe, found.eh_frame, found.neither, found.dropped) == (0, 0, 0x100, ())


def test_without_sframe_nothing_was_dropped():
    assert cover(module([], [(TEXT, 0x40)])).dropped == ()


def test_ranges():
    assert merge([(5, 9), (1, 3), (3, 4), (7, 8), (20, 20)]) == [(1, 4), (5, 9)]
    assert intersect([(1, 4), (6, 9)], [(3, 7), (8, 20)]) == [(3, 4), (6, 7), (8, 9)]


def test_tables_that_agree():
    found = verify(module([entry(TEXT, 0x40)], [(TEXT, 0x40)]))

    assert (found.compared, found.sframe_only, found.disagreements) == (1, 0, ())


def test_a_wrong_row_is_found_with_both_sides():
    [wrong] = verify(module([entry(TEXT, 0x40, cfa=16)], [(TEXT, 0x40)])).disagreements

    assert (wrong.function, wrong.vaddr) == (TEXT, TEXT)
    assert wrong.sframe.cfa == Rule(7, 16, deref=False)
    assert wrong.eh_frame.cfa == Rule(7, 8, deref=False)


def test_code_that_only_sframe_covers_is_counted_not_judged():
    found = verify(module([entry(TEXT, 0x40), entry(TEXT + 0x40, 0x40)], [(TEXT, 0x40)]))

    assert (found.compared, found.sframe_only, found.disagreements) == (1, 1, ())


def test_a_function_that_claims_four_gigabytes_costs_its_code():
    found = verify(module([entry(TEXT, 0xFFFF_FFFF)], [(TEXT, 0x40)]))

    assert found.disagreements == ()
