"""Tests of coverage, and of its limits for hostile files, on ELF files that the tests build."""

import pytest

from sfsample.errors import SfsampleError
from sfsample.formats.elf.image import ElfImage
from sfsample.inspect.coverage import check_tables, measure_coverage, merge_ranges, shared_bytes
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


# -- tables that claim more than any file has


def huge(functions: list[Function], cfi: list[tuple[int, int, bytes]], memsz: int = 1 << 40) -> Module:
    """Return a module with a code segment of `memsz` bytes, of which the file has few."""
    frames = EhFrameBuilder(CFI)
    cie = frames.cie(AMD64_START)
    for start, size, program in cfi:
        frames.fde(cie, start, size, program)
    loads = [Load(TEXT, bytes(0x10), memsz=memsz), Load(CFI, frames.terminated(), flags=R),
             Load(SFRAME, section(3, functions, address=SFRAME), type=PT_GNU_SFRAME),
             Load(HDR, frames.hdr(HDR), flags=R, type=PT_GNU_EH_FRAME)]  # fmt: skip
    return Module(ElfImage(elf(loads), "/lib/x.so"), 0, "/lib/x.so")


def test_functions_that_share_more_rows_than_the_file_has_are_refused():
    first = Function(TEXT, 0x10_0000, [row(at, 8) for at in range(50_000)])
    functions = [first, *(Function(TEXT + at, 1, [], fre_off=0) for at in range(1, 100))]
    with pytest.raises(SfsampleError, match="SFrame functions with 5000000 rows"):
        check_tables(huge(functions, []))


def test_table_that_is_larger_than_a_quarter_of_the_file_is_refused():
    check_tables(huge([entry(TEXT, 1)], []))
    with pytest.raises(SfsampleError, match=r"an unwind table of 1\d{7} bytes"):
        check_tables(huge([entry(TEXT, 1)], [(TEXT, 1, bytes(13_000_000))]))
