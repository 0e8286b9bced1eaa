"""Options for finding and spelling symbols.

The command line fills them from its flags and the environment; the library itself reads neither.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfsample.modules.debug_files import FetchDebugFile

Progress = Callable[[str], None]  # is called with a text before slow work


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """How function names are spelled, and what is added to them."""

    raw: bool = False  # keep names mangled
    simplify: bool = False  # C++ names without template arguments and parameter lists
    merge_clones: bool = False  # `f.cold` and `f.part.0` are `f`
    lines: bool = False  # add file and line from DWARF
    inlines: bool = False  # add inlined functions from DWARF


@dataclass(frozen=True, kw_only=True)
class SymbolOptions(NameOptions):
    """The same, and where names are found."""

    debug_dirs: tuple[str, ...] = ()  # searched before the system's directory
    fetch: "FetchDebugFile | None" = None  # asks a debuginfod server
    cache_dir: str | None = None  # None: no cache
    progress: Progress = lambda _text: None


DEFAULT_SYMBOL_OPTIONS = SymbolOptions()
