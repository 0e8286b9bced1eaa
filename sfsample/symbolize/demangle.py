"""Names as people wrote them: C++ (Itanium), Rust v0, Rust legacy.

Law: it never raises, never hangs and never returns an empty name for one that was not empty.  A name that
cannot be read stays as it is.  The library is imported when the first mangled name is met.
"""

from collections.abc import Callable
from functools import cache

_PREFIXES = ("_Z", "_R")
_MAX_NAME = 10_000  # the longest of half a million names of LLVM, clang, rustc, scipy has 1,230


def demangle(name: str) -> str:
    """Return `name` demangled, spelled as c++filt and rustc-demangle spell it, or as it is.

    A clone says so, `f(int) [clone .cold]`; the hash of a legacy Rust name is dropped; a symbol version
    (`@GLIBCXX_3.4`) stays.
    """
    if not name.startswith(_PREFIXES) or len(name) > _MAX_NAME:
        return name
    mangled, at, version = name.partition("@")
    return (_library()(mangled) or mangled) + at + version


@cache
def _library() -> Callable[[str], str]:
    try:
        from demangle import demangle as read
    except ImportError:  # a broken install must not cost the recording
        return str

    def read_or_keep(name: str) -> str:
        try:
            spelled: str = read(name, language=("itanium", "rust"), style="gnu")
        except Exception:  # noqa: BLE001 - hostile names reach code that is not ours
            return name
        return spelled

    return read_or_keep
