"""`sfsample top`: a live view in the terminal."""

from argparse import Namespace

from sfsample.errors import SfsampleError


def run(arguments: Namespace) -> int:
    """Show the live view until the user leaves or the target ends; return the exit code."""
    try:
        from sfsample.cli.top.command import run_top
    except ImportError as failure:
        if failure.name not in ("curses", "_curses"):
            raise
        # some builds of Python have no curses
        raise SfsampleError("this Python has no curses", "for a file: sfsample record -o out.html") from None
    return run_top(arguments)
