"""Finds the starts of x86-64 functions that no table describes, and the functions that never return.

A start is only a hint: the target of a call, an address that code loads, or a dynamic symbol.  Other bytes
may look like a call, and a label inside a function may look like a start.  Code analysis follows code from a
start, and uses the start only if the code leads to the pc.

`_NEVER_RETURN` lists functions that never return; programs call such functions through PLT stubs.  If a name
is missing in the list, code analysis goes on after a call that does not return.

Sources: C11 (7.13, 7.22, 7.26), POSIX, LSB, the Itanium C++ ABI, libstdc++'s functexcept.h.
"""

import re
from collections.abc import Callable, Iterator
from itertools import islice

from sfsample.core.arch import AMD64
from sfsample.core.checkpoint import checkpoint
from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.formats.machine_code.calls import stub_slot

_MAX_CODE_SIZE = 1 << 24  # bytes of one image
_MAX_RANGES, _MAX_TARGETS = 16, 1 << 20  # compiled code has one range, and one call per 20 bytes
# call rel32; lea x(%rip),register: the distance counts from the end of the instruction
_REFERENCES = re.compile(rb"(?:\xe8|\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d])(?=(....))", re.DOTALL)
# mov $address,register, in programs that are linked to a fixed address
_ABSOLUTE = re.compile(rb"(?:[\xb8-\xbf]|\xc7[\xc0-\xc7])(?=(....))", re.DOTALL)
_LONGEST_END = 9  # bytes of the longest match of `_END` or `_MAY_END`
_FUNCTION_ALIGNMENT = 16  # bytes
_END = re.compile(  # ret, int3, nop, hlt; ud2; jmp; longer nops
    rb"(?:[\xc3\xcc\x90\xf4]|\x0f\x0b|\xe9....|\xeb.|\xff[\xe0-\xe7]"
    rb"|\x0f\x1f(?:\0|\x40\0|\x44\0\0|\x80\0{4}|\x84\0{5}))\Z",
    re.DOTALL,
)
_MAY_END = re.compile(rb"(?:\xe8....|\xff[\xd0-\xd7]|\0{4})\Z", re.DOTALL)  # a call; zeros between sections

_NEVER_RETURN = frozenset((
    "abort", "exit", "_exit", "_Exit", "quick_exit", "pthread_exit", "thrd_exit",
    "longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "err", "errx", "verr", "verrx",
    "__assert", "__assert_fail", "__assert_perror_fail", "__stack_chk_fail", "__chk_fail", "__fortify_fail",
    "_Unwind_Resume", "__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "__cxa_bad_typeid",
    "__cxa_pure_virtual", "__cxa_throw_bad_array_new_length", "__cxa_call_unexpected", "_ZSt9terminatev",
))  # fmt: skip
_LIBSTDCXX_THROW = re.compile(r"_ZSt\d+__throw_")
_STUB_SIZE = 16  # bytes


def find_function_starts(image: ElfImage) -> list[int]:
    """Return possible starts, vaddrs in ascending order; none if the code is not x86-64, or too large."""
    ranges = image.executable
    is_too_large = sum(end - start for start, end in ranges) > _MAX_CODE_SIZE or len(ranges) > _MAX_RANGES
    if image.machine != AMD64.machine or is_too_large:
        return []
    targets = (target for start, end in ranges for target in _targets(image, start, end))
    candidates = {*Dynamic(image).functions(), *islice(targets, _MAX_TARGETS)}
    return sorted(vaddr for vaddr in candidates if _may_be_start(image, vaddr))


def _may_be_start(image: ElfImage, vaddr: int) -> bool:
    """Return True if a function may begin at `vaddr`, because the code before it does not fall through.

    A call before `vaddr` usually returns.  Zeros before `vaddr` may be the end of an instruction, or the gap
    between two sections.  After a call or zeros, `vaddr` must be a multiple of the alignment of functions.
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


def stubs_without_return(image: ElfImage) -> Callable[[int], bool]:
    """Return a function that tells whether the PLT stub at a vaddr leads to a function that never returns."""
    imports = Dynamic(image).imports().items()
    slots = {slot for slot, name in imports if name in _NEVER_RETURN or _LIBSTDCXX_THROW.match(name)}

    def is_such_stub(vaddr: int) -> bool:
        code = bytes(image.loaded(vaddr, _STUB_SIZE) or b"") if slots else b""
        return stub_slot(image.machine, code, vaddr) in slots

    return is_such_stub
