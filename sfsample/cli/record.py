"""`sfsample record`: sample a process for a while and write the profile.

Law: whatever ends the recording, what was collected is written, then the truth about it is told on stderr.
A recording that is no result is an error, and leaves the result's file alone.
"""

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sfsample import api
from sfsample.cli.console import Interrupt, Output, steppers, targets
from sfsample.cli.progress import Progress, recording
from sfsample.cli.symbol_flags import naming
from sfsample.cli.terminal import emit, say
from sfsample.core.snapshot import Capture
from sfsample.errors import NoSuchProcess, SfsampleError, UsageError
from sfsample.process.task_files import open_many
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.recording.summary import summary_lines
from sfsample.report.json_text import json_text
from sfsample.report.report import Report
from sfsample.report.writers.formats import FORMATS
from sfsample.saved_stacks.store import BadStackStore

if TYPE_CHECKING:
    from subprocess import Popen

_TERMINATE_S = 5
_PROBLEMS = 5


def run(arguments: Namespace) -> int:
    """Record, write, report; return the exit code."""
    output = Output(arguments.output)
    try:
        stats = Output(arguments.stats) if arguments.stats not in (None, "-") else None
        try:
            bad_stacks = BadStackStore(arguments.save_bad) if arguments.save_bad is not None else None
            profile, unnamed = _record(arguments, output, stats, bad_stacks)
        finally:
            if stats is not None:
                stats.discard()
    finally:
        output.discard()
    if not arguments.quiet:
        first, *more = summary_lines(
            profile.stats, arguments.mode, unnamed=unnamed, verbose=arguments.verbose
        )
        more += () if bad_stacks is None else _kept(bad_stacks)
        say(f"sfsample: {first}", *(f"  {line}" for line in more))
    return _ended(profile.stats)


def _ended(stats: Stats) -> int:
    """Return the exit code; say what has ended the recording before its time."""
    if not stats.failure:
        return 0
    what, *more = stats.failure
    say(f"sfsample: {what}", *(f"  {line}" for line in more))
    return 1


def _kept(bad_stacks: BadStackStore) -> list[str]:
    number, where = bad_stacks.written, bad_stacks.directory
    more = " (there were more)" if bad_stacks.full else ""
    kept = f"saved     {number} incomplete stack{'' if number == 1 else 's'} in {where}{more}"
    return [kept, *(f"problem   {text}" for text in bad_stacks.problems)]


def _record(
    arguments: Namespace, output: Output, stats: Output | None, bad_stacks: BadStackStore | None
) -> tuple[Profile, list[str]]:
    if stats is not None and output.file and stats.file == output.file:
        raise UsageError(f"-o and --stats are the same file: {arguments.stats}")
    wanted = naming(arguments)
    with Interrupt() as interrupt, _target(arguments) as pids:
        if _is_watched(arguments):
            say(f"sfsample: recording {', '.join(map(str, pids))}; Ctrl-C ends it")
        profile = Profile(rate(arguments), timeline=FORMATS[arguments.format].timeline)
        with Progress(quiet=arguments.quiet) as progress:
            stop = _watching(arguments, profile.stats, progress, interrupt)
            sample(arguments, pids, arguments.duration, stop, profile=profile, bad_stacks=bad_stacks)
        namer = api.symbolizer(profile, wanted)
        report = api.named(profile, namer)
        lost = _write_stats(arguments, stats, report)
        judge(profile.stats, pids)
        output.write(api.render(report, arguments.format, threads=arguments.threads))
        if lost is not None:
            raise lost
    return profile, [*map(str, namer.unnamed()), *namer.problems]


def _watching(
    arguments: Namespace, stats: Stats, progress: Progress, interrupt: Interrupt
) -> Callable[[], bool]:
    """Return what the sampler asks between its ticks; it also tells people at a terminal how far it is."""
    began, cpu = time.monotonic(), time.process_time()

    def asked() -> bool:
        if progress.due():
            elapsed, used = time.monotonic() - began, time.process_time() - cpu
            progress.show(recording(stats, elapsed, arguments.duration, used))
        return interrupt()

    return asked


def _is_watched(arguments: Namespace) -> bool:
    """Whether somebody looks on: what happens meanwhile is told at a terminal only, the summary says all."""
    return sys.stderr is not None and sys.stderr.isatty() and not arguments.quiet


def rate(arguments: Namespace) -> float:
    """Return the samples per second that --rate or --interval asks for."""
    return 1 / arguments.interval if arguments.interval else float(arguments.rate)


def sample(
    arguments: Namespace,
    pids: list[int],
    duration: float | None,
    should_stop: Callable[[], bool],
    *,
    profile: Profile | None = None,
    bad_stacks: BadStackStore | None = None,
) -> Profile:
    """Record with the flags that `record` and `watch` share."""
    open_many()
    return api.record(
        pids,
        duration,
        rate=rate(arguments),
        mode=arguments.mode,
        max_frames=arguments.max_frames,
        stack_bytes=arguments.stack_bytes,
        steppers=steppers(arguments),
        should_stop=should_stop,
        profile=profile,
        bad_stacks=bad_stacks,
        kernel=arguments.kernel,
        stop=arguments.stop,
        max_pause=arguments.max_pause,
        max_overhead=arguments.max_overhead,
        subprocesses=arguments.subprocesses,
        debug_dirs=tuple(arguments.debug_dir or ()),
        perf_events=arguments.perf_events,
        tell=lambda text: say(f"sfsample: {text}") if _is_watched(arguments) else None,
    )


def judge(stats: Stats, pids: Sequence[int]) -> None:
    """Raise when the recording is no result.  That no thread ran is one, and so is an early Ctrl-C."""
    check_begun(stats, pids)
    if stats.samples or stats.ended_by == "signal":
        return
    who = ", ".join(map(str, pids))
    if stats.captures[Capture.FAILED]:
        raise SfsampleError(f"nothing could be collected: every capture of {who} failed",
                            *(text for text, _ in stats.problems.most_common(_PROBLEMS)))  # fmt: skip
    if stats.ticks == stats.late_ticks:
        raise SfsampleError(f"nothing could be collected: every tick for {who} was missed",
                            "the machine is overloaded; try a lower --rate")  # fmt: skip


def check_begun(stats: Stats, pids: Sequence[int]) -> None:
    """Raise NoSuchProcess when there was nobody to record."""
    if stats.ended_by == "target" and stats.ticks <= 1 and not stats.samples:
        who = ", ".join(map(str, pids))
        raise NoSuchProcess(pids[0], f"process has ended before the first sample: {who}")


# -- a program of our own


@contextmanager
def _target(arguments: Namespace) -> Iterator[list[int]]:
    """Give the pids to record; a program that was started for it is ended afterwards."""
    if arguments.program is None:
        yield targets(arguments)
        return
    child = _start(arguments)
    try:
        yield [child.pid]
    except NoSuchProcess:
        raise NoSuchProcess(child.pid, f"ended before the first sample: {arguments.program[0]}",
                            *_fate(child)) from None  # fmt: skip
    finally:
        _finish(child, quiet=arguments.quiet)


def _start(arguments: Namespace) -> "Popen[bytes]":
    from subprocess import Popen

    # stdout carries only the result, so the program's own goes to stderr when the result goes to stdout
    stdout = sys.stderr if arguments.output == "-" else None
    try:
        return Popen(arguments.program, stdout=stdout)
    except OSError as failure:
        raise SfsampleError(f"cannot start: {arguments.program[0] or repr('')}: {failure.strerror}",
                            "give a program on PATH, or a path") from None  # fmt: skip


def _fate(child: "Popen[bytes]") -> tuple[str, ...]:
    status = child.poll()
    if status is None:
        return ()
    return (f"signal {-status} killed it" if status < 0 else f"its exit status is {status}",)


def _finish(child: "Popen[bytes]", *, quiet: bool) -> None:
    from subprocess import TimeoutExpired

    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_TERMINATE_S)
        except TimeoutExpired:
            say(f"sfsample: {child.pid} goes on: it ignores SIGTERM")
            return
        if not quiet:
            say(f"sfsample: terminated {child.pid}, which this command had started")


def _write_stats(arguments: Namespace, output: Output | None, report: Report) -> SfsampleError | None:
    """Write them first, as a reader of the profile may go away; return why not, as that costs no profile."""
    text = json_text(report.stats or {})
    if output is not None:
        try:
            output.write(text)
        except SfsampleError as failure:
            return failure
    elif arguments.stats == "-":
        emit(text)
    return None
