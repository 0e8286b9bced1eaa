"""Turns the flags of function names, and the environment, into `SymbolOptions`.

It reads XDG_CACHE_HOME, HOME and the variables of debuginfod(1).
"""

import os
from argparse import Namespace

from sfsample.cli.terminal import progress_printer
from sfsample.core.foreign import natural
from sfsample.core.python_view import PythonView
from sfsample.errors import UsageError
from sfsample.symbolize.debuginfod import Debuginfod
from sfsample.symbolize.dwarf_lines import available
from sfsample.symbolize.options import SymbolOptions

_DEFAULT_TIMEOUT_S = 90.0  # the standard client's, debuginfod(1) DEBUGINFOD_TIMEOUT


def symbol_options(arguments: Namespace) -> SymbolOptions:
    """Return what the flags ask for.  Raises UsageError when that needs what is not installed."""
    only_python = getattr(arguments, "python", None) is PythonView.ONLY  # needs no DWARF
    if ((arguments.lines and not only_python) or arguments.inlines) and not available():
        raise UsageError("--lines and --inlines need an extra that is not installed",
                         "install it: pip install 'sfsample[lines]'")  # fmt: skip
    return SymbolOptions(
        raw=arguments.raw_names,
        simplify=arguments.simplify_names,
        merge_clones=arguments.merge_clones,
        lines=arguments.lines,
        inlines=arguments.inlines,
        fetch=_debuginfod(arguments) if arguments.debuginfod else None,
        progress=progress_printer(quiet=arguments.quiet),
        debug_dirs=tuple(arguments.debug_dir),
        cache_dir=os.path.join(cache_home(), "sfsample"),
    )


def _debuginfod(arguments: Namespace) -> Debuginfod:
    urls = os.environ.get("DEBUGINFOD_URLS", "").split()
    if not urls:
        raise UsageError("--debuginfod: no server is configured",
                         "set DEBUGINFOD_URLS to those of your distribution")  # fmt: skip
    old = os.path.expanduser("~/.debuginfod_client_cache")  # where it exists, the client still uses it
    default = old if os.path.isdir(old) else os.path.join(cache_home(), "debuginfod_client")
    cache = os.environ.get("DEBUGINFOD_CACHE_PATH") or default
    timeout_s = float(natural(os.environ.get("DEBUGINFOD_TIMEOUT", ""), 1 << 16) or _DEFAULT_TIMEOUT_S)
    online = arguments.command != "dump"  # a dump must not wait for the network
    return Debuginfod(urls, cache, timeout_s, progress_printer(quiet=arguments.quiet), online=online)


def cache_home() -> str:
    """Return the cache directory (XDG Base Directory Specification, which ignores a relative path)."""
    directory = os.environ.get("XDG_CACHE_HOME", "")
    return directory if os.path.isabs(directory) else os.path.join(os.path.expanduser("~"), ".cache")
