"""Finds where x86-64 functions begin that no table describes: call targets, addresses taken, dynamic symbols.

The result is a hint.  Calls are found by their bytes alone, and a label inside a function may be among the
addresses, so the caller follows the code from there.
"""

import re
from collections.abc import Iterator
from itertools import islice

from sfsample.core.arch import AMD64
from sfsample.core.checkpoint import checkpoint
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import PT_LOAD, ElfImage

_MAX_CODE_SIZE = 1 << 24  # bytes of one image
_MAX_RANGES, _MAX_TARGETS = 16, 1 << 20  # code that is compiled has one range, and a call in 20 bytes
# call rel32; lea x(%rip),register: the distance counts from the end of the instruction
_REFERENCES = re.compile(rb"(?:\xe8|\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d])(?=(....))", re.DOTALL)
# mov $address,register: where a program is linked to an address
_ABSOLUTE = re.compile(rb"(?:[\xb8-\xbf]|\xc7[\xc0-\xc7])(?=(....))", re.DOTALL)
_LONGEST_END = 9  # bytes of the longest match of `_END` and `_MAY_END`
_FUNCTION_ALIGNMENT = 16  # bytes
_END = re.compile(  # ret, int3, nop, hlt; ud2; jmp; longer nops
    rb"(?:[\xc3\xcc\x90\xf4]|\x0f\x0b|\xe9....|\xeb.|\xff[\xe0-\xe7]"
    rb"|\x0f\x1f(?:\0|\x40\0|\x44\0\0|\x80\0{4}|\x84\0{5}))\Z",
    re.DOTALL,
)
_MAY_END = re.compile(rb"(?:\xe8....|\xff[\xd0-\xd7]|\0{4})\Z", re.DOTALL)  # a call; zeros between sections


def find_function_starts(image: ElfImage) -> list[int]:
    """Return vaddrs in ascending order; none where the code is not x86-64, or too large to search."""
    ranges = image.executable
    if image.machine != AMD64.machine or sum(end - start for start, end in ranges) > _MAX_CODE_SIZE:
        return []
    if len(ranges) > _MAX_RANGES:
        return []
    targets = (target for start, end in ranges for target in _targets(image, start, end))
    candidates = {*Dynamic(image).functions(), *islice(targets, _MAX_TARGETS)}
    return sorted(vaddr for vaddr in candidates if _may_be_start(image, vaddr))


def _may_be_start(image: ElfImage, vaddr: int) -> bool:
    """Whether a function may begin at `vaddr`: the code before it does not fall through, or is padding.

    Most calls return, and zeros end many instructions.  So after a call (which may not return) or zeros (the
    gap before a section) only an address that compilers align functions to is accepted.
    """
    checkpoint()
    if not any(start <= vaddr < end for start, end in image.executable):
        return False
    before = image.loaded(vaddr - _LONGEST_END, _LONGEST_END)
    if before is None or _END.search(bytes(before)):
        return True
    return vaddr % _FUNCTION_ALIGNMENT == 0 and _MAY_END.search(bytes(before)) is not None


def _targets(image: ElfImage, start: int, end: int) -> Iterator[int]:
    code = bytes((image.loaded(start) or b"")[: end - start])
    for match in _REFERENCES.finditer(code):
        checkpoint()
        yield start + match.end() + 4 + int.from_bytes(match[1], "little", signed=True)
    if all(segment.vaddr for segment in image.segments if segment.type == PT_LOAD):
        yield from (int.from_bytes(match[1], "little") for match in _ABSOLUTE.finditer(code))
