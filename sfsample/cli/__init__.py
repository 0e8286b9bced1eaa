"""The command line: the only code that prints, exits, and reads the environment.

Law: one file per command.  Nothing but argparse is imported until the command is known, so `--help` starts
at once.  An error is one line, then help lines; a traceback is a bug of ours.
"""

import sys

COMMANDS = ("record", "dump", "watch")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    from sfsample.errors import SfsampleError

    try:
        return _run(sys.argv[1:] if argv is None else argv)
    except SfsampleError as failure:
        _complain(str(failure), failure.help)
        return failure.exit_code
    except KeyboardInterrupt:
        _complain("aborted")
        return 1
    except BrokenPipeError:
        sys.stderr.flush()
        _silence_stdout()
        return 1


def _run(argv: list[str]) -> int:
    from sfsample.cli.options import parse

    arguments = parse(argv)
    if arguments.command == "dump":
        from sfsample.cli.dump import run
    elif arguments.command == "watch":
        from sfsample.cli.watch import run
    else:
        from sfsample.cli.record import run
    return run(arguments)


def _complain(what: str, help_lines: tuple[str, ...] = ()) -> None:
    text = "".join(f"  {line}\n" for line in help_lines)
    sys.stderr.write(f"sfsample: {what}\n{text}")


def _silence_stdout() -> None:
    """Keep the interpreter's last flush from complaining: the reader has gone."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
