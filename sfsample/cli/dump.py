"""`sfsample dump`: every thread of a process, once.

Law: a thread that could not be captured is shown with the reason, and the exit code is 5.
"""

import os
import time
from argparse import Namespace

from sfsample import api
from sfsample.cli.console import Interrupt, Output, steppers, targets
from sfsample.cli.naming import naming
from sfsample.cli.terminal import printable, say
from sfsample.errors import NoSuchProcess, TargetError
from sfsample.model import Capture
from sfsample.output.document import json_text
from sfsample.output.dump import DumpNames, dump_json, dump_text
from sfsample.snapshot import ProcessDump
from sfsample.symbolize.names import frame_name
from sfsample.symbolize.symbolizer import Symbolizer

_PARTIAL = 5


def run(arguments: Namespace) -> int:
    """Dump, write; return the exit code."""
    output = Output(arguments.output)
    try:
        pids = targets(arguments)
        with Interrupt():  # a dump is short: Ctrl-C waits for its end, Ctrl-Z for the end of a pause
            dumps, failures = _take(arguments, pids)
        names = _names(arguments, dumps)
        if arguments.json:
            document = {"schema": "sfsample.dump/1", "time": time.time(), "host": os.uname().nodename,
                        "processes": [dump_json(dump, names) for dump in dumps]}  # fmt: skip
            output.write(json_text(document, indent=1))
        else:
            output.write("\n".join("".join(f"{line}\n" for line in dump_text(d, names)) for d in dumps))
    finally:
        output.discard()
    for text in dict.fromkeys(problem for dump in dumps for problem in dump.problems):
        if not arguments.quiet:
            say(f"sfsample: {text}")
    missed = any(thread.capture is Capture.FAILED for dump in dumps for thread in dump.threads)
    return _PARTIAL if missed or failures else 0


def _take(arguments: Namespace, pids: list[int]) -> tuple[list[ProcessDump], int]:
    """Dump every process; the failure of one of several is told, and the others are shown."""
    dumps: list[ProcessDump] = []
    failures: list[TargetError] = []
    for pid in pids:
        try:
            dump = api.dump(pid, max_frames=arguments.max_frames, steppers=steppers(arguments),
                            stack_bytes=arguments.stack_bytes)  # fmt: skip
            if not dump.threads:
                raise NoSuchProcess(pid, f"process has ended: {pid}")
            dumps.append(dump)
        except TargetError as failure:
            failures.append(failure)
    if failures and not dumps:
        raise failures[0]
    for told in failures:
        say(f"sfsample: {told}", *(f"  {line}" for line in told.help))
    return dumps, len(failures)


def _names(arguments: Namespace, dumps: list[ProcessDump]) -> DumpNames:
    from sfsample.target.syscalls import syscall_name

    homes = {dump.pid: dump.home for dump in dumps if dump.home is not None}
    symbolizer = Symbolizer(naming(arguments), homes)
    return DumpNames(
        symbol=symbolizer.symbol,
        text=frame_name,
        clean=printable,
        syscall=syscall_name,
    )
