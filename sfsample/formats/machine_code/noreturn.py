"""Functions that never return, as other modules call them: through linkage stubs, by name.

Law: a list, and how it is asked.  What is missing on it makes code seem to go on behind a call.

Sources: C11 (7.13, 7.22, 7.26), POSIX, LSB, the Itanium C++ ABI, libstdc++'s functexcept.h.
"""

import re

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
_THROWS = re.compile(r"_ZSt\d+__throw_")
_STUB = 16  # bytes


class NoReturn:
    """The linkage stubs of an image that lead to such functions."""

    def __init__(self, image: ElfImage) -> None:
        imports = Dynamic(image).imports()
        self._image = image
        self._slots = {slot for slot, name in imports.items() if name in _NAMES or _THROWS.match(name)}

    def __contains__(self, vaddr: object) -> bool:
        if not isinstance(vaddr, int):
            return False
        code = bytes(self._image.loaded(vaddr, _STUB) or b"") if self._slots else b""
        return stub_slot(self._image.machine, code, vaddr) in self._slots
