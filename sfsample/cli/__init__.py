"""The command line: the only code that prints, exits, and reads the environment.

Law: one file per command.  Nothing but argparse is imported until the command is known, so `--help` starts
at once.  An error is one line, then help lines; a traceback is a bug of ours.
"""

import sys

from sfsample.errors import MORE_FILES, NO_FILES, SfsampleError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        if sys.stdout is not None:  # closed by who started us
            sys.stdout.flush()
    except SfsampleError as failure:
        _complain(str(failure), failure.help)
        return failure.exit_code
    except MemoryError:
        _complain("out of memory", ("allow more: ulimit -v; a smaller --stack-bytes needs less",))
        return 1
    except KeyboardInterrupt:
        # not `signal`, which takes its time to import, in which one more may come
        from _signal import SIG_IGN, SIGINT, signal  # type: ignore[import-not-found]

        signal(SIGINT, SIG_IGN)
        _complain("aborted")
        return 1
    except OSError as failure:
        if failure.errno in NO_FILES:
            _complain("no files left to open", (MORE_FILES,))
        elif failure.filename is not None:
            _complain(f"{failure.strerror}: {failure.filename}")
        else:  # of --help and --version; the commands tell theirs themselves
            _lost_stdout(failure)
        return 1
    return code


def _lost_stdout(failure: OSError) -> None:
    from sfsample.cli.terminal import silence

    silence(sys.stdout)
    if not isinstance(failure, BrokenPipeError):
        _complain(f"cannot write: standard output: {failure.strerror}")


def _run(argv: list[str]) -> int:
    from sfsample.cli.parse import parse

    try:
        arguments = parse(argv)
    except SystemExit as done:  # --help, --version
        return int(done.code or 0)
    code: int = _load(arguments.command).run(arguments)
    return code


def _load(command: str) -> "ModuleType":
    """Import a command.  What is imported stays, so the collector looks at it neither now nor at the end."""
    import gc
    from importlib import import_module

    gc.disable()
    try:
        return import_module(f"sfsample.cli.{command}")
    finally:
        gc.freeze()
        gc.enable()


def _complain(what: str, help_lines: tuple[str, ...] = ()) -> None:
    from sfsample.cli.terminal import say

    say(f"sfsample: {what}", *(f"  {line}" for line in help_lines))
