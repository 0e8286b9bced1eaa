"""`sfsample dump`: shows stacks and waits of all threads; exit code 5 if a thread could not be captured."""

import os
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

from sfsample.cli.chosen import chosen_pids
from sfsample.cli.environment import symbol_options
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.options import DumpCommand
from sfsample.cli.output_file import Output
from sfsample.cli.terminal import say
from sfsample.core.printable import printable
from sfsample.core.snapshot import Capture
from sfsample.dumping.model import ProcessDump
from sfsample.dumping.run import Dumps, Examiner, Meanwhile, dump_all
from sfsample.errors import SfsampleError, TargetError
from sfsample.process.descendants import Descendants
from sfsample.process.process import LiveProcess
from sfsample.process.thread_files import KERNEL_STACK_REFUSED
from sfsample.process.tracer_thread import with_names
from sfsample.symbolize.options import SymbolOptions

if TYPE_CHECKING:
    from sfsample.dumping.diagnose.verdict import Verdict

_EXIT_INCOMPLETE = 5
_MIN_NAMING_S = 1.0  # least time to find names, even if --timeout has passed


def run(command: DumpCommand) -> int:
    """Dump, write; return the exit code."""
    render = _render_json if command.output.format == "json" else _render_text
    output = Output(command.output.path)
    examine = Examiner(symbols(command))

    def rehearse(dumps: list[ProcessDump]) -> None:
        """Render the first samples during the wait for the second samples; this imports modules early."""
        render(examine([dump.with_one_of_each_group() for dump in dumps]), command)

    failures: list[SfsampleError] = []
    if command.core is not None:
        from sfsample.dumping.core import dump_core  # imported only for core files

        sysroot = (command.sysroot or "").rstrip("/")
        dumps = [dump_core(command.core, command.exe, command.options, sysroot=sysroot)]
        verdict = examine(dumps)
    else:
        with Interrupt() as interrupt:  # Ctrl-C ends the sampling; Ctrl-Z takes effect when no thread is held
            end_s = time.monotonic() + command.options.timeout
            dumps, failures = _dump(command, rehearse, interrupt)
            until_s = max(end_s, time.monotonic() + _MIN_NAMING_S)
            verdict = with_names(lambda: examine(dumps), examine.give_up, interrupt, until_s)
    dumps = [dump for dump, _ in verdict.processes]
    output.write(render(verdict, command))
    if not command.quiet:
        problems = [problem for dump in dumps for problem in dump.problems]
        if command.kernel and not any(thread.kernel_stack for dump in dumps for thread in dump.threads):
            problems.append(KERNEL_STACK_REFUSED)
        for text in dict.fromkeys([*problems, *(examine.missing_names() if command.verbose else ())]):
            say(text)
    missing = any(thread.capture is Capture.FAILED for dump in dumps for thread in dump.threads)
    return _EXIT_INCOMPLETE if missing or failures else 0


def symbols(command: DumpCommand) -> SymbolOptions:
    """Return the options for names.  They allow no download: a dump must not wait for the network."""
    return symbol_options(command.names, quiet=command.quiet, online=False, python=command.options.python)


def _dump(command: DumpCommand, meanwhile: Meanwhile, should_stop: Interrupt) -> Dumps:
    """Dump every process, and print the failures; if all processes fail, raise the first failure."""
    pids = chosen_pids(command.target, quiet=command.quiet)
    if command.subprocesses:
        with closing(Descendants(pids, LiveProcess)) as descendants:
            pids += [pid for pid, stat in descendants.list_new() if not stat.is_over]
    dumps, failures = dump_all(pids, command.options, meanwhile, should_stop, follow=not command.subprocesses)
    if failures and not dumps:
        raise failures[0]
    for failure in failures:
        is_of_tree = command.subprocesses and isinstance(failure, TargetError)
        say(failure, *(() if is_of_tree else failure.help))
    return dumps, failures


# The first call of a writer imports its modules; `rehearse` makes this call while sfsample waits.


def _render_json(verdict: "Verdict", command: DumpCommand) -> str:
    from sfsample.dumping.json import document
    from sfsample.report.json_text import json_text

    return json_text(document(verdict, command.depth), indent=1)


def _render_text(verdict: "Verdict", command: DumpCommand) -> str:
    from sfsample.dumping.text import Style, dump_text

    style = Style(printable, whole=command.verbose, kernel=command.kernel, depth=command.depth,
                  python=command.options.python)  # fmt: skip
    if command.output.path == "-" and sys.stdout.isatty():  # only a terminal has a width and colours
        width = os.get_terminal_size(sys.stdout.fileno()).columns or None
        bold = str if os.environ.get("NO_COLOR") else "\x1b[1m{}\x1b[0m".format
        style = style._replace(width=width, bold=bold)
    return "".join(f"{line}\n" for line in dump_text(verdict, style))
