"""Runs the command line: parses it, runs the command, turns a failure into an error line and an exit code.

Only this package prints, exits and reads the environment.  The module of a command is imported only when the
command runs, so that `--help` stays fast (tests/cli/test_startup.py).  A traceback is a bug of sfsample.
"""

import gc
import os
import shlex
import signal
import sys
from errno import ENOMEM
from importlib import import_module

from sfsample.cli.terminal import emit, say
from sfsample.core.printable import printable, printable_lines
from sfsample.errors import FILES_HELP, NO_FILE_ERRNOS, NotPermitted, SfsampleError

_OUT_OF_MEMORY = ("out of memory", "allow more: ulimit -v; a smaller --stack-bytes needs less")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words)
    except SfsampleError as failure:
        lines = [with_own_path(line, words) for line in failure.help]
        if isinstance(failure, NotPermitted) and failure.pid and "doctor" not in words:
            lines.append(f"sfsample doctor {failure.pid} shows everything that may refuse access")
        say(failure, *lines)
        return failure.exit_code
    except MemoryError:
        say(*_OUT_OF_MEMORY)
        return 1
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would print a traceback at another SIGINT
        say("aborted")
        return 1
    except OSError as failure:
        _print_os_error(failure)
        return 1


def with_own_path(line: str, words: list[str]) -> str:
    """Replace "sudo sfsample ..." by a command line with full paths, because sudo(8) has its own PATH."""
    from sfsample.watching.own_program import own_program  # imported only for help lines

    path = os.path.abspath(sys.argv[0])
    command = [path, *words] if os.path.basename(path) == "sfsample" else own_program(*words)
    return line.replace("sudo sfsample ...", f"sudo {shlex.join(command)}")


def _print_os_error(failure: OSError) -> None:
    if failure.errno == ENOMEM:
        say(*_OUT_OF_MEMORY)
    elif failure.errno in NO_FILE_ERRNOS:
        say("too many open files", FILES_HELP)
    elif failure.filename is not None:
        say(f"{failure.strerror}: {failure.filename}")
    elif not isinstance(failure, BrokenPipeError):  # BrokenPipeError: the reader of stdout has ended
        from traceback import extract_tb  # imported only after such a failure

        at = extract_tb(failure.__traceback__)[-1]
        where = f"{at.name} ({os.path.basename(at.filename)})"
        say(f"the kernel refuses a system call: {failure.strerror}: in {where}",
            "a seccomp filter or a security module may forbid it: see sfsample doctor")  # fmt: skip


def _run(argv: list[str]) -> int:
    from sfsample.cli.commands import name_of
    from sfsample.cli.parse import parse  # imported here, where Ctrl-C causes no traceback

    try:
        command = parse(argv)
    except SystemExit as end:  # --help, --version
        return int(end.code or 0)
    if os.environ.get("SFSAMPLE_LOG") == "debug":
        _start_logging()
    from sfsample.process.priority import TURN_S, hurry  # imported here, so that `--help` stays fast

    gc.disable()  # with `freeze` below: garbage collections never visit the objects of modules
    with hurry(TURN_S):  # imports take most of the time of a brief command
        module = import_module(f"sfsample.cli.{name_of(command).partition(' ')[0]}")
    gc.freeze()
    gc.enable()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `sfsample.__main__` has set SIG_DFL
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code: int = module.run(command)
    return code


def _start_logging() -> None:
    """Log sfsample's decisions on stderr (why a thread was captured again, ...), but none during a pause."""
    import logging  # most runs do not log

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            record.msg, record.args = printable(record.getMessage()), None  # names come from the target
            emit(printable_lines(self.format(record).splitlines()))

    logging.basicConfig(format="sfsample: %(relativeCreated)d ms %(name)s: %(message)s", handlers=[Handler()])
    logging.getLogger("sfsample").setLevel(logging.DEBUG)
