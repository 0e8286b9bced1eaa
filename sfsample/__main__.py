"""The command `sfsample`, which `python -m sfsample` is too.

Ctrl-C ends the process without a word while modules are imported: Python's own handler would raise in the
midst of an import, and could only print a traceback.  `sfsample.cli` installs that handler before a command
runs.  Where memory is too short for an import, Python raises many kinds of exceptions.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command line and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "watch" in sys.argv[1:2]:  # SIGUSR1 would end it before its handler is set
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        if "dump" in sys.argv[1:2]:
            from sfsample.process.hurry import hurry

            hurry()
        from sfsample.cli import main as run

        return run()
    except (ImportError, MemoryError, OSError, SyntaxError, SystemError) as failure:
        sys.exit(f"sfsample: cannot start: {str(failure) or 'out of memory'}\n"
                 "  allow more memory (ulimit -v), or install sfsample again")  # fmt: skip


def _import_from_trusted_directories() -> None:
    """Import modules later, too, from Python's directories, then this package's: not from the current one.

    `python -m` would look there first.  Started by its path (cli/own_program.py), this runs its own package.
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
