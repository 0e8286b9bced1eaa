"""The command `sfsample`, which `python -m sfsample` is too.

Ctrl-C ends the process without a word while modules are imported: Python's own handler would raise in the
midst of an import, and could only print a traceback.  `sfsample.cli` installs that handler before a command
runs.  Where memory is too short for an import, Python raises many kinds of exceptions.
"""

import signal
import sys


def main() -> int:
    """Run the command line and return the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "watch" in sys.argv[1:2]:  # until it is ready for SIGUSR1, which else would end it
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        from sfsample.cli import main as run

        return run()
    except (ImportError, MemoryError, OSError, SyntaxError, SystemError) as failure:
        sys.exit(f"sfsample: cannot start: {str(failure) or 'out of memory'}\n"
                 "  allow more memory (ulimit -v), or install sfsample again")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
