"""Demangles symbols of C++ (Itanium ABI) and Rust (v0 and legacy).

Invariant: it never raises, never hangs and never makes a name empty; a symbol that cannot be demangled stays
as it is (tests/symbolize/test_demangle.py).  The library is imported at the first mangled symbol.
"""

from collections.abc import Callable
from functools import cache

_PREFIXES = ("_Z", "_R")
_MAX_NAME_CHARS = 10_000  # the longest of half a million symbols of LLVM, clang, rustc, scipy has 1,230


def demangle(name: str) -> str:
    """Return `name` demangled in the style of c++filt and rustc-demangle, or unchanged.

    A clone keeps its suffix, `f(int) [clone .cold]`; the hash of a legacy Rust symbol is dropped; a symbol
    version (`@GLIBCXX_3.4`) stays.
    """
    if not name.startswith(_PREFIXES) or len(name) > _MAX_NAME_CHARS:
        return name
    mangled, at, version = name.partition("@")
    return (_library()(mangled) or mangled) + at + version


@cache
def _library() -> Callable[[str], str]:
    try:
        from demangle import demangle as library_demangle
    except ImportError:  # a broken installation must not lose the recording
        return str

    def demangle_or_keep(name: str) -> str:
        try:
            demangled: str = library_demangle(name, language=("itanium", "rust"), style="gnu")
        except Exception:  # noqa: BLE001 - hostile names reach code of a library
            return name
        return demangled

    return demangle_or_keep
