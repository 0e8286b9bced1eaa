"""`sfsample record`: sample a process for a while and write folded stacks.

Law: whatever ends the recording, what was collected is written, then the truth about it is told on stderr.
"""

import json
import sys
from argparse import Namespace
from subprocess import Popen, TimeoutExpired

from sfsample import api
from sfsample.cli.console import Interrupt, Output, say, steppers, targets
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.model import Capture
from sfsample.output.summary import summary_lines
from sfsample.profile import Profile, Stats

_TERMINATE_S = 5


def run(arguments: Namespace) -> int:
    """Record, write, report; return the exit code."""
    output = Output(arguments.output)
    stats = Output(arguments.stats) if arguments.stats not in (None, "-") else None
    try:
        with Interrupt() as interrupt:
            profile = _record(arguments, interrupt)
            output.write(api.folded(profile, threads=arguments.threads))
            _write_stats(arguments, stats, profile.stats)
    finally:
        output.discard()
        if stats is not None:
            stats.discard()
    if not arguments.quiet:
        lines = list(summary_lines(profile.stats, arguments.mode, verbose=arguments.verbose))
        say("sfsample: " + "\n  ".join(lines))
    _judge(profile.stats, arguments.mode)
    return 0


def _record(arguments: Namespace, interrupt: Interrupt) -> Profile:
    if arguments.program is None:
        return sample(arguments, targets(arguments), arguments.duration, interrupt)
    child = _start(arguments)
    try:
        return sample(arguments, [child.pid], arguments.duration, interrupt)
    finally:
        _finish(child, quiet=arguments.quiet)


def sample(arguments: Namespace, pids: list[int], duration: float | None, interrupt: Interrupt) -> Profile:
    """Record with the flags that `record` and `watch` share."""
    if sys.stderr.isatty() and not arguments.quiet:
        until = "" if duration is None else f" for {duration:g} s"
        say(f"sfsample: recording {', '.join(map(str, pids))}{until}; Ctrl-C ends it")
    rate = 1 / arguments.interval if arguments.interval else arguments.rate
    return api.record(
        pids,
        duration,
        rate=rate,
        mode=arguments.mode,
        max_frames=arguments.max_frames,
        stack_bytes=arguments.stack_bytes,
        steppers=steppers(arguments),
        should_stop=interrupt,
    )


def _start(arguments: Namespace) -> "Popen[bytes]":
    # stdout carries only the result, so the program's own goes to stderr when the result goes to stdout
    stdout = sys.stderr if arguments.output == "-" else None
    try:
        return Popen(arguments.program, stdout=stdout)
    except OSError as failure:
        raise SfsampleError(f"cannot start: {arguments.program[0]}: {failure.strerror}",
                            "give a program on PATH, or a path") from None  # fmt: skip


def _finish(child: "Popen[bytes]", *, quiet: bool) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_TERMINATE_S)
        except TimeoutExpired:
            say(f"sfsample: {child.pid} goes on: it ignores SIGTERM")
            return
        if not quiet:
            say(f"sfsample: terminated {child.pid}, which this command had started")


def _write_stats(arguments: Namespace, output: Output | None, stats: Stats) -> None:
    text = json.dumps(stats.as_json()) + "\n"
    if output is not None:
        output.write(text)
    elif arguments.stats == "-":
        say(text)


def _judge(stats: Stats, mode: str) -> None:
    """Raise when the recording is no result."""
    if stats.samples:
        return
    if stats.captures[Capture.FAILED]:
        raise SfsampleError("nothing could be collected: every capture failed")
    if stats.ended_by == "target" and stats.ticks <= 1:
        raise NoSuchProcess(0, "the process ended before the first sample")
    if mode == "wall" and stats.ended_by != "signal":
        raise SfsampleError("nothing could be collected")
