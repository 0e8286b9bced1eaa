"""Where functions of x86-64 code begin that no table describes, by what refers to them.

Law: bytes in, vaddrs out: targets of calls, places of which the address is taken, dynamic symbols.  Calls are
found by their bytes alone, and a label inside of a function may be among the addresses.  So it is a hint, and
who uses it follows the code from there.
"""

import re
from collections.abc import Iterator

from sfsample.core.arch import AMD64
from sfsample.core.checkpoint import checkpoint
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import PT_LOAD, ElfImage

_MOST_CODE = 1 << 24
# call rel32; lea x(%rip),register: the distance counts from behind it
_REFERENCES = re.compile(rb"(?:\xe8|\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d])(?=(....))", re.DOTALL)
# mov $address,register: where a program is linked to an address
_ABSOLUTE = re.compile(rb"(?:[\xb8-\xbf]|\xc7[\xc0-\xc7])(?=(....))", re.DOTALL)
_BEFORE = 9
_ALIGNED = 16
_END = re.compile(  # ret, int3, nop, hlt; ud2; jmp; longer nops
    rb"(?:[\xc3\xcc\x90\xf4]|\x0f\x0b|\xe9....|\xeb.|\xff[\xe0-\xe7]"
    rb"|\x0f\x1f(?:\0|\x40\0|\x44\0\0|\x80\0{4}|\x84\0{5}))\Z",
    re.DOTALL,
)
_MAY_END = re.compile(rb"(?:\xe8....|\xff[\xd0-\xd7]|\0{4})\Z", re.DOTALL)  # a call; a gap


def beginnings(image: ElfImage) -> list[int]:
    """Return vaddrs, in order; none of other code, or where there is too much to look through."""
    ranges = image.executable
    if image.machine != AMD64.machine or sum(end - start for start, end in ranges) > _MOST_CODE:
        return []
    targets = (target for start, end in ranges for target in _targets(image, start, end))
    found = {*Dynamic(image).functions(), *targets}
    return sorted(at for at in found if _may_begin(image, at))


def _may_begin(image: ElfImage, vaddr: int) -> bool:
    """Whether a function may begin there: what is before it does not go on, or is padding.

    Calls mostly go on, and zeros end many an instruction: behind those (a call that does not return, the gap
    below a section) a function is believed only where compilers begin them.
    """
    checkpoint()
    if not any(start <= vaddr < end for start, end in image.executable):
        return False
    before = image.loaded(vaddr - _BEFORE, _BEFORE)
    if before is None or _END.search(bytes(before)):
        return True
    return vaddr % _ALIGNED == 0 and _MAY_END.search(bytes(before)) is not None


def _targets(image: ElfImage, start: int, end: int) -> Iterator[int]:
    code = bytes(image.loaded(start) or b"")[: end - start]
    for match in _REFERENCES.finditer(code):
        checkpoint()
        yield start + match.end() + 4 + int.from_bytes(match[1], "little", signed=True)
    if all(segment.vaddr for segment in image.segments if segment.type == PT_LOAD):
        yield from (int.from_bytes(match[1], "little") for match in _ABSOLUTE.finditer(code))
