"""Starts the command line, for `sfsample` and for `python -m sfsample`.

While modules are imported, Ctrl-C ends the process silently: Python's own handler would print a traceback.
`sfsample.cli` installs Python's handler before a command runs.  An import that lacks memory may raise many
kinds of exceptions, so `main` catches all of them.
"""

import _signal as signal  # type: ignore[import-not-found]  # `signal` imports more modules
import os
import sys


def main() -> int:
    """Run the command line and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "watch" in sys.argv[1:2]:  # SIGUSR1 would end the process until `watch` sets a handler
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        if "dump" in sys.argv[1:2]:
            from sfsample.process.priority import hurry

            with hurry():
                from sfsample.cli import main as run

                return run()
        from sfsample.cli import main as run

        return run()
    except (ImportError, MemoryError, OSError, SyntaxError, SystemError) as failure:
        sys.exit(f"sfsample: cannot start: {str(failure) or 'out of memory'}\n"
                 "  allow more memory (ulimit -v), or install sfsample again")  # fmt: skip


def _import_from_trusted_directories() -> None:
    """Let imports search Python's directories, then this package's directory, never the current directory.

    `python -m` would search the current directory first.  If Python starts this file by its path
    (watching/own_program.py), the package that contains this file runs.
    """
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path:
        del sys.path[0]  # the current directory, or the directory of this file
    sys.path[:] = [own, *filter(os.path.isabs, sys.path)]
    import sfsample  # noqa: F401 - from now on, Python finds the package's modules without sys.path

    sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    _import_from_trusted_directories()
    sys.exit(main())
