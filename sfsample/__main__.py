"""The command `sfsample`, and `python -m sfsample`.

While modules are imported, Ctrl-C ends the process silently: Python's own handler would print a traceback.
`sfsample.cli` installs Python's handler before a command runs.  If there is too little memory for an import,
Python raises many kinds of exceptions.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command line and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "watch" in sys.argv[1:2]:  # SIGUSR1 would end the process before its handler is set
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        if "dump" in sys.argv[1:2]:
            from sfsample.process.priority import hurry

            hurry()
        from sfsample.cli import main as run

        return run()
    except (ImportError, MemoryError, OSError, SyntaxError, SystemError) as failure:
        sys.exit(f"sfsample: cannot start: {str(failure) or 'out of memory'}\n"
                 "  allow more memory (ulimit -v), or install sfsample again")  # fmt: skip


def _import_from_trusted_directories() -> None:
    """Import later modules from Python's directories, then from this package's, never from the current one.

    `python -m` would search the current directory first.  If this file is started by its path
    (watching/own_program.py), it runs the package in which it lies.
    """
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path:
        del sys.path[0]  # the current directory, or that of this file
    sys.path[:] = [own, *filter(os.path.isabs, sys.path)]
    import sfsample  # noqa: F401 - its modules are found beside it from now on

    sys.path.append(sys.path.pop(0))


if __name__ == "__main__":
    _import_from_trusted_directories()
    sys.exit(main())
