"""Defines options for finding and spelling symbols; only `cli` reads flags and the environment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sfsample.modules.debug_files import FetchDebugFile

Progress = Callable[[str], None]  # function that is called with a text before slow work


@dataclass(frozen=True, kw_only=True)
class NameOptions:
    """How function names are spelled, what is added to them, and where debug files are."""

    raw: bool = False  # mangled names
    simplify: bool = False  # C++ names without template arguments and parameter lists
    merge_clones: bool = False  # one name `f` for `f.cold` and `f.part.0`
    lines: bool = False  # file and line from DWARF
    inlines: bool = False  # inlined functions from DWARF
    debug_dirs: tuple[str, ...] = ()  # directories with debug files, which are searched before the system's


@dataclass(frozen=True, kw_only=True)
class SymbolOptions(NameOptions):
    """The options of `NameOptions`, and further options for the search for names."""

    go_places: bool = False  # file, line and inlined functions, for Go code only
    fetch: "FetchDebugFile | None" = None  # function that asks a debuginfod server
    progress: Progress = lambda _text: None


DEFAULT_SYMBOL_OPTIONS = SymbolOptions()
