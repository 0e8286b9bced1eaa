"""How names are to be found and spelled.

Law: values only; the command line fills them from its flags and from the environment, a program as it likes.
"""

from collections.abc import Callable
from typing import NamedTuple

from sfsample.modules.debug_files import FetchDebugFile

Progress = Callable[[str], None]


class SymbolOptions(NamedTuple):
    """What is wanted beyond plain names."""

    raw: bool = False  # mangled names
    simplify: bool = False  # C++ without template arguments and parameter lists
    merge_clones: bool = False  # `f.cold` and `f.part.0` are `f`
    lines: bool = False  # file and line, from DWARF
    inlines: bool = False  # inlined functions, from DWARF
    debug_dirs: tuple[str, ...] = ()  # searched before the system's
    fetch: FetchDebugFile | None = None  # asks a debuginfod server
    cache_dir: str | None = None  # None keeps nothing
    progress: Progress = lambda _text: None  # is told what takes long


DEFAULT_SYMBOL_OPTIONS = SymbolOptions()
