"""Tests of coverage and of the comparison of SFrame with `.eh_frame`, on ELF files that the tests build."""

from sfsample.core.rule import Rule
from sfsample.formats.elf.image import ElfImage
from sfsample.inspect.coverage import measure_coverage, merge_ranges, shared_bytes
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


def test_coverage_counts_bytes_of_code():
    found = measure_coverage(module([entry(TEXT, 0x40)], [(TEXT, 0x40), (TEXT + 0x80, 0x20)]))

    assert (found.text_bytes, found.sframe_bytes, found.eh_frame_bytes, found.uncovered_bytes) == (
        0x100,
        0x40,
        0x60,
        0xA0,
    )
    assert found.eh_frame_fdes == 2
    assert found.dropped == ((TEXT + 0x80, TEXT + 0xA0),)
    assert found.share(found.sframe_bytes) == 0.25


def test_coverage_ignores_bytes_outside_the_code():
    found = measure_coverage(module([entry(TEXT - 0x20, 0x40), entry(TEXT + 0xF0, 0x1000)], []))

    assert found.sframe_bytes == 0x20 + 0x10


def test_module_without_tables_is_not_covered():
    found = measure_coverage(module([], []))

    assert (found.sframe_bytes, found.eh_frame_bytes, found.uncovered_bytes, found.dropped) == (
        0,
        0,
        0x100,
        (),
    )


def test_module_without_sframe_has_no_dropped_functions():
    assert measure_coverage(module([], [(TEXT, 0x40)])).dropped == ()


def test_ranges_are_merged_and_their_shared_bytes_counted():
    assert merge_ranges([(5, 9), (1, 3), (3, 4), (7, 8), (20, 20)]) == [(1, 4), (5, 9)]
    assert shared_bytes([(1, 4), (6, 9)], [(3, 7), (8, 20)]) == 1 + 1 + 1
    assert shared_bytes([(1, 4)], [(4, 9)]) == 0


def test_equal_tables_agree():
    found = verify(module([entry(TEXT, 0x40)], [(TEXT, 0x40)]))

    assert (found.compared, found.sframe_only, found.disagreements) == (1, 0, ())


def test_disagreement_has_the_rules_of_both_tables():
    [wrong] = verify(module([entry(TEXT, 0x40, cfa=16)], [(TEXT, 0x40)])).disagreements

    assert (wrong.function, wrong.vaddr) == (TEXT, TEXT)
    assert wrong.sframe.cfa == Rule(7, 16, deref=False)
    assert wrong.eh_frame.cfa == Rule(7, 8, deref=False)


def test_code_that_only_sframe_covers_is_counted():
    found = verify(module([entry(TEXT, 0x40), entry(TEXT + 0x40, 0x40)], [(TEXT, 0x40)]))

    assert (found.compared, found.sframe_only, found.disagreements) == (1, 1, ())


def test_function_that_claims_four_gigabytes_ends_with_the_code():
    found = verify(module([entry(TEXT, 0xFFFF_FFFF)], [(TEXT, 0x40)]))

    assert found.disagreements == ()
