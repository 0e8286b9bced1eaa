"""Knows functions that never return, as other modules call them: through PLT stubs, by name.

Where a function is missing from the list, code analysis goes on behind a call that does not return.

Sources: C11 (7.13, 7.22, 7.26), POSIX, LSB, the Itanium C++ ABI, libstdc++'s functexcept.h.
"""

import re
from collections.abc import Callable

from sfsample.formats.elf.dynamic import Dynamic
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.calls import stub_slot

_NAMES = frozenset((
    "abort", "exit", "_exit", "_Exit", "quick_exit", "pthread_exit", "thrd_exit",
    "longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "err", "errx", "verr", "verrx",
    "__assert", "__assert_fail", "__assert_perror_fail", "__stack_chk_fail", "__chk_fail", "__fortify_fail",
    "_Unwind_Resume", "__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "__cxa_bad_typeid",
    "__cxa_pure_virtual", "__cxa_throw_bad_array_new_length", "__cxa_call_unexpected", "_ZSt9terminatev",
))  # fmt: skip
_LIBSTDCXX_THROW = re.compile(r"_ZSt\d+__throw_")
_STUB_SIZE = 16  # bytes


def stubs_without_return(image: ElfImage) -> Callable[[int], bool]:
    """Return a function: whether the PLT stub at a vaddr leads to a function that never returns."""
    slots = {slot for slot, name in Dynamic(image).imports().items() if _never_returns(name)}

    def is_such_stub(vaddr: int) -> bool:
        code = bytes(image.loaded(vaddr, _STUB_SIZE) or b"") if slots else b""
        return stub_slot(image.machine, code, vaddr) in slots

    return is_such_stub


def _never_returns(name: str) -> bool:
    return name in _NAMES or _LIBSTDCXX_THROW.match(name) is not None
