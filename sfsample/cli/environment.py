"""Reads the environment variables.  Source: XDG Base Directory Specification; debuginfod(1)."""

import os
from dataclasses import fields
from typing import TYPE_CHECKING

from sfsample.cli.options import NameFlags
from sfsample.cli.terminal import progress_printer
from sfsample.core.foreign import natural
from sfsample.core.python_view import PythonView
from sfsample.errors import UsageError
from sfsample.symbolize.options import NameOptions, SymbolOptions

if TYPE_CHECKING:
    from sfsample.symbolize.debuginfod import Debuginfod

_DEFAULT_TIMEOUT_S = 90.0  # default of the standard client, debuginfod(1) DEBUGINFOD_TIMEOUT


def history_directory(chosen: str | None) -> str:
    """Return the directory of the history: `chosen`, or the default directory of the user."""
    return chosen or _below("XDG_STATE_HOME", "~/.local/state", "sfsample", "history")


def symbol_options(
    names: NameFlags, *, quiet: bool, online: bool = True, python: PythonView = PythonView.AUTO
) -> SymbolOptions:
    """Return the options for names.  `online` False: no downloads.  Raises UsageError."""
    if (names.lines and python is not PythonView.ONLY) or names.inlines:
        from sfsample.symbolize.dwarf_lines import available  # imported only for these flags

        if not available():
            raise UsageError("--lines and --inlines need an extra that is not installed",
                             "install it: pip install 'sfsample[lines]'")  # fmt: skip
    return SymbolOptions(
        **{field.name: getattr(names, field.name) for field in fields(NameOptions)},
        fetch=_debuginfod(quiet=quiet, online=online) if names.debuginfod else None,
        progress=progress_printer(quiet=quiet),
    )


def _debuginfod(*, quiet: bool, online: bool) -> "Debuginfod":
    from sfsample.symbolize.debuginfod import Debuginfod  # imported only for --debuginfod

    urls = os.environ.get("DEBUGINFOD_URLS", "").split()
    if not urls:
        raise UsageError("--debuginfod: no server is configured",
                         "set DEBUGINFOD_URLS to the servers of your distribution")  # fmt: skip
    default_cache = _below("XDG_CACHE_HOME", "~/.cache", "debuginfod_client")
    cache = os.environ.get("DEBUGINFOD_CACHE_PATH") or default_cache
    timeout_s = float(natural(os.environ.get("DEBUGINFOD_TIMEOUT", ""), 1 << 16) or _DEFAULT_TIMEOUT_S)
    return Debuginfod(urls, cache, timeout_s, progress_printer(quiet=quiet), online=online)


def _below(variable: str, default: str, *names: str) -> str:
    """Return a path below the directory in `variable`, or below `default` if that is no absolute path."""
    directory = os.environ.get(variable, "")
    return os.path.join(directory if os.path.isabs(directory) else os.path.expanduser(default), *names)
