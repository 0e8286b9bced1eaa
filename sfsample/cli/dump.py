"""`sfsample dump`: every thread of a process, and what it hangs on.

Law: a thread that could not be captured is shown with the reason, and the exit code is 5.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Iterator

from sfsample.cli.console import Interrupt, Output, steppers, targets
from sfsample.cli.naming import naming
from sfsample.cli.terminal import printable, say
from sfsample.dumping import Examination, Examiner, How, dump_all
from sfsample.errors import TargetError
from sfsample.model import Capture
from sfsample.output.dump_text import Style, header, process_text, verdict_text
from sfsample.snapshot import ProcessDump

_PARTIAL = 5


def run(arguments: Namespace) -> int:
    """Dump, write; return the exit code."""
    output = Output(arguments.output)
    examine = Examiner(naming(arguments))
    try:
        pids = targets(arguments)
        with Interrupt():  # a dump is short: Ctrl-C waits for its end, Ctrl-Z for the end of a pause
            dumps, failures = _take(arguments, pids, examine)
        seen = examine(dumps)
        output.write(_json(seen) if arguments.json else _lines(seen, arguments))
    finally:
        output.discard()
    for text in dict.fromkeys(problem for dump in dumps for problem in dump.problems):
        if not arguments.quiet:
            say(f"sfsample: {text}")
    missed = any(thread.capture is Capture.FAILED for dump in dumps for thread in dump.threads)
    return _PARTIAL if missed or failures else 0


def _take(
    arguments: Namespace, pids: list[int], examine: Examiner
) -> tuple[list[ProcessDump], list[TargetError]]:
    """Dump every process; the failure of one of several is told, and the others are shown."""
    how = How(arguments.looks, arguments.interval, arguments.max_frames, arguments.stack_bytes,
              steppers(arguments))  # fmt: skip
    dumps, failures = dump_all(pids, how, meanwhile=examine)
    if failures and not dumps:
        raise failures[0]
    for told in failures:
        say(f"sfsample: {told}", *(f"  {line}" for line in told.help))
    return dumps, failures


def _json(seen: Examination) -> str:
    from sfsample.output.document import json_text
    from sfsample.output.dump import dump_json, finding_json

    waits = seen.verdict.waits
    document = {
        "schema": "sfsample.dump/1",
        "time": time.time(),
        "host": os.uname().nodename,
        "verdict": [finding_json(finding) for finding in seen.verdict.findings],
        "processes": [dump_json(dump, threads, waits) for dump, threads in seen.processes],
    }
    return json_text(document, indent=1)


def _lines(seen: Examination, arguments: Namespace) -> str:
    return "".join(f"{line}\n" for line in _text(seen, arguments))


def _text(seen: Examination, arguments: Namespace) -> Iterator[str]:
    style, verdict = _style(arguments), seen.verdict
    for index, (dump, threads) in enumerate(seen.processes):
        yield from [""] * (index > 0)
        yield header(dump, style)
        if index == 0:  # of all of them
            yield from verdict_text(verdict, style)
        yield from process_text(dump, threads, verdict, verdict.words, style)


def _style(arguments: Namespace) -> Style:
    """Colour, and lines that fit, only on a terminal."""
    if arguments.output != "-" or not sys.stdout.isatty():
        return Style(printable, whole=arguments.verbose)
    bold = str if os.environ.get("NO_COLOR") else _bold
    width = os.get_terminal_size(sys.stdout.fileno()).columns or None
    return Style(printable, width, bold, arguments.verbose)


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m"
