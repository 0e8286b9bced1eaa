"""From the flags and the environment to how names are found.

Law: the only place that knows the variables: XDG_CACHE_HOME and HOME, and those of debuginfod(1).
"""

import os
import sys
from argparse import Namespace

from sfsample.cli.terminal import say
from sfsample.errors import UsageError
from sfsample.symbolize.dwarf_lines import available
from sfsample.symbolize.options import Progress, SymbolOptions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sfsample.symbolize.debuginfod import Debuginfod

_TIMEOUT_S = 90.0  # the standard client's


def naming(arguments: Namespace) -> SymbolOptions:
    """Return what the flags ask for.  Raises UsageError when that needs what is not installed."""
    if (arguments.lines or arguments.inlines) and not available():
        raise UsageError("--lines and --inlines need an extra that is not installed",
                         "install it: pip install 'sfsample[lines]'")  # fmt: skip
    return SymbolOptions(
        raw=arguments.raw_names,
        simplify=arguments.simplify_names,
        merge_clones=arguments.merge_clones,
        lines=arguments.lines,
        inlines=arguments.inlines,
        fetch=_debuginfod(arguments) if arguments.debuginfod else None,
        progress=_progress(quiet=arguments.quiet),
        debug_dirs=tuple(arguments.debug_dir or ()),
        cache_dir=os.path.join(cache_home(), "sfsample"),
    )


def _debuginfod(arguments: Namespace) -> "Debuginfod":
    from sfsample.symbolize.debuginfod import Debuginfod  # seldom wanted

    urls = os.environ.get("DEBUGINFOD_URLS", "").split()
    if not urls:
        raise UsageError(
            "--debuginfod: no server is configured", "set DEBUGINFOD_URLS to those of your distribution"
        )
    old = os.path.expanduser("~/.debuginfod_client_cache")  # where it exists, the client still uses it
    default = old if os.path.isdir(old) else os.path.join(cache_home(), "debuginfod_client")
    cache = os.environ.get("DEBUGINFOD_CACHE_PATH") or default
    timeout = os.environ.get("DEBUGINFOD_TIMEOUT", "")
    return Debuginfod(urls, cache, float(timeout) if timeout.isdecimal() else _TIMEOUT_S,
                      _progress(quiet=arguments.quiet), online=arguments.command != "dump")  # fmt: skip


def _progress(*, quiet: bool) -> Progress:
    """Tell people at a terminal what takes long, and nobody else."""

    def tell(text: str) -> None:
        if sys.stderr is not None and sys.stderr.isatty() and not quiet:
            say(f"sfsample: {text}")

    return tell


def cache_home() -> str:
    """Return the directory of caches (XDG Base Directory Specification); what is relative is ignored."""
    directory = os.environ.get("XDG_CACHE_HOME", "")
    return directory if os.path.isabs(directory) else os.path.join(os.path.expanduser("~"), ".cache")
