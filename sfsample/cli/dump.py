"""`sfsample dump`: every thread of a process, and what it hangs on.

Law: a thread that could not be captured is shown with the reason, and the exit code is 5.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable

from sfsample.cli.console import Interrupt, Output, steppers, targets
from sfsample.cli.symbol_flags import naming
from sfsample.cli.terminal import printable, say
from sfsample.core.snapshot import Capture
from sfsample.dumping.collect import ProcessDump
from sfsample.dumping.run import DumpOptions, Examination, Examiner, dump_all, dump_core
from sfsample.errors import TargetError
from sfsample.process.kernel_stack import REFUSED

_PARTIAL = 5


def run(arguments: Namespace) -> int:
    """Dump, write; return the exit code."""
    output = Output(arguments.output)
    examine = Examiner(naming(arguments))
    write = _json if arguments.json else _text
    try:
        # what the first look gave is written for nothing, while we wait: then all that it takes is loaded
        rehearse = lambda dumps: write(examine(dumps), arguments)  # noqa: E731
        dumps, failures = _core(arguments) if arguments.core is not None else _live(arguments, rehearse)
        output.write(write(examine(dumps), arguments))
    finally:
        output.discard()
    problems = [problem for dump in dumps for problem in dump.problems]
    if arguments.kernel and not any(thread.kernel_stack for dump in dumps for thread in dump.threads):
        problems.append(REFUSED)
    for text in dict.fromkeys([*problems, *(examine.unnamed() if arguments.verbose else ())]):
        if not arguments.quiet:
            say(f"sfsample: {text}")
    missed = any(thread.capture is Capture.FAILED for dump in dumps for thread in dump.threads)
    return _PARTIAL if missed or failures else 0


def _how(arguments: Namespace) -> DumpOptions:
    return DumpOptions(arguments.looks, arguments.interval, arguments.max_frames, arguments.stack_bytes,
               steppers(arguments), not arguments.no_stop, arguments.consistent,
               tuple(arguments.debug_dir or ()))  # fmt: skip


def _core(arguments: Namespace) -> tuple[list[ProcessDump], list[TargetError]]:
    sysroot = (arguments.sysroot or "").rstrip("/")
    return [dump_core(arguments.core, arguments.exe, _how(arguments), sysroot=sysroot)], []


def _live(
    arguments: Namespace, meanwhile: Callable[[list[ProcessDump]], object]
) -> tuple[list[ProcessDump], list[TargetError]]:
    """Dump every process; the failure of one of several is told, and the others are shown."""
    pids = targets(arguments)
    with Interrupt() as interrupt:  # Ctrl-C ends the looks, and Ctrl-Z waits for the end of a pause
        dumps, failures = dump_all(pids, _how(arguments), meanwhile, interrupt)
    if failures and not dumps:
        raise failures[0]
    for told in failures:
        say(f"sfsample: {told}", *(f"  {line}" for line in told.help))
    return dumps, failures


def _json(seen: Examination, _arguments: Namespace) -> str:
    from sfsample.dumping.json import dump_json, finding_json
    from sfsample.report.json_text import json_text

    waits = seen.verdict.waits
    document = {
        "schema": "sfsample.dump/1",
        "time": time.time(),
        "host": os.uname().nodename,
        "verdict": [finding_json(finding) for finding in seen.verdict.findings],
        "processes": [dump_json(dump, threads, waits) for dump, threads in seen.processes],
    }
    return json_text(document, indent=1)


def _text(seen: Examination, arguments: Namespace) -> str:
    from sfsample.dumping.text import Style, dump_text

    style = Style(printable, whole=arguments.verbose, kernel=arguments.kernel)
    if arguments.output == "-" and sys.stdout.isatty():  # colour, and lines that fit, only on a terminal
        width = os.get_terminal_size(sys.stdout.fileno()).columns or None
        style = style._replace(width=width, bold=str if os.environ.get("NO_COLOR") else _bold)
    return "".join(f"{line}\n" for line in dump_text(seen.processes, seen.verdict, style))


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"
