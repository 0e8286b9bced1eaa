"""`sfsample dump`: the stack of every thread of a process, and what the process waits for.

A thread that could not be captured is shown with the reason, and the exit code is then 5.
"""

import os
import sys
import time
from argparse import Namespace
from typing import TYPE_CHECKING

from sfsample.cli.interrupt import Interrupt
from sfsample.cli.naming import with_names
from sfsample.cli.output_file import Output
from sfsample.cli.symbol_flags import symbol_options
from sfsample.cli.targets import target_pids
from sfsample.cli.terminal import printable, say
from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture
from sfsample.dumping.model import ProcessDump
from sfsample.dumping.run import DumpOptions, Dumps, Examiner, Meanwhile, dump_all
from sfsample.errors import SfsampleError
from sfsample.process.thread_files import KERNEL_STACK_REFUSED
from sfsample.unwind.unwinder import choose_steppers

if TYPE_CHECKING:
    from sfsample.dumping.diagnose.verdict import Verdict

_EXIT_INCOMPLETE = 5
_MIN_NAMING_S = 1.0  # for names, also if all the time of the dump was needed to collect


def run(arguments: Namespace) -> int:
    """Dump, write; return the exit code."""
    render = _render_json if arguments.format == "json" else _render_text
    output = Output(arguments.output)
    examine = Examiner(symbol_options(arguments))

    def rehearse(dumps: list[ProcessDump]) -> None:
        """Render the first samples while sfsample waits for the second: this imports what it takes."""
        render(examine(dumps), arguments)

    options = _options(arguments)
    if arguments.core is not None:
        dumps, failures = [_core(arguments, options)], list[SfsampleError]()
        verdict = examine(dumps)
    else:
        with Interrupt() as interrupt:  # Ctrl-C ends the sampling; Ctrl-Z waits until no thread is held
            end_s = time.monotonic() + options.timeout_s
            dumps, failures = _dump(arguments, options, rehearse, interrupt)
            until_s = max(end_s, time.monotonic() + _MIN_NAMING_S)
            verdict = with_names(lambda: examine(dumps), examine, interrupt, until_s)
    output.write(render(verdict, arguments))
    if not arguments.quiet:
        missing_names = examine.missing_names() if arguments.verbose else []
        for text in dict.fromkeys([*_problems(dumps, kernel=arguments.kernel), *missing_names]):
            say(text)
    missing = any(thread.capture is Capture.FAILED for dump in dumps for thread in dump.threads)
    return _EXIT_INCOMPLETE if missing or failures else 0


def _problems(dumps: list[ProcessDump], *, kernel: bool) -> list[str]:
    """Return what went wrong; `kernel`: kernel stacks were asked for."""
    problems = [problem for dump in dumps for problem in dump.problems]
    if kernel and not any(thread.kernel_stack for dump in dumps for thread in dump.threads):
        problems.append(KERNEL_STACK_REFUSED)
    return problems


def _options(arguments: Namespace) -> DumpOptions:
    return DumpOptions(
        looks=arguments.looks, interval_s=arguments.interval, max_frames=arguments.max_frames,
        stack_bytes=arguments.stack_bytes, steppers=choose_steppers(arguments.unwind),
        stop=not arguments.no_stop, consistent=arguments.consistent, debug_dirs=tuple(arguments.debug_dir),
        python=arguments.python is not PythonView.OFF, with_locals=arguments.locals,
        timeout_s=arguments.timeout,
    )  # fmt: skip


def _core(arguments: Namespace, options: DumpOptions) -> ProcessDump:
    from sfsample.dumping.core import dump_core

    return dump_core(arguments.core, arguments.exe, options, sysroot=(arguments.sysroot or "").rstrip("/"))


def _dump(arguments: Namespace, options: DumpOptions, meanwhile: Meanwhile, should_stop: Interrupt) -> Dumps:
    """Dump every process; print the failures, unless all processes fail."""
    pids = target_pids(arguments)
    dumps, failures = dump_all(pids, options, meanwhile, should_stop)
    if failures and not dumps:
        raise failures[0]
    for failure in failures:
        say(failure, *failure.help)
    return dumps, failures


# The writers are imported when they are called, which is while sfsample waits for the second samples.


def _render_json(verdict: "Verdict", arguments: Namespace) -> str:
    from sfsample.dumping.json import dump_json, finding_json
    from sfsample.report.json_text import json_text

    document = {
        "schema": "sfsample.dump/1",
        "time": time.time(),
        "host": os.uname().nodename,
        "verdict": [finding_json(finding) for finding in verdict.findings],
        "processes": [
            dump_json(dump, threads, verdict, arguments.depth) for dump, threads in verdict.processes
        ],
    }
    return json_text(document, indent=1)


def _render_text(verdict: "Verdict", arguments: Namespace) -> str:
    from sfsample.dumping.text import Style, dump_text

    style = Style(printable, whole=arguments.verbose, kernel=arguments.kernel, depth=arguments.depth)
    if arguments.output == "-" and sys.stdout.isatty():  # colour, and lines that fit, only on a terminal
        width = os.get_terminal_size(sys.stdout.fileno()).columns or None
        style = style._replace(width=width, bold=str if os.environ.get("NO_COLOR") else _bold)
    return "".join(f"{line}\n" for line in dump_text(verdict, style))


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"
