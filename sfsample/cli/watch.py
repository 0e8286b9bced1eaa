"""`sfsample watch`: records a slice at regular intervals, for months.

Slice k begins at start + k * every.  For each slice the target is looked up again.  Two things are kept
from one slice to the next: the schedule, and which missing names were reported, so that each is reported
once.  After the first slice no failure of one slice ends the watch.  SIGTERM ends the slice, which is
written, and the exit code is 0.
"""

import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress

from sfsample import api
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.naming import with_names
from sfsample.cli.output_file import Output
from sfsample.cli.sampling import check_begun, record_processes
from sfsample.cli.symbol_flags import symbol_options
from sfsample.cli.targets import target_pids
from sfsample.cli.terminal import say
from sfsample.cli.values import suffix_of
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.process.find import start_time
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.recording.summary import missing_name_lines
from sfsample.report.formats import FORMATS
from sfsample.symbolize.symbolizer import Symbolizer

_MAX_SLEEP_S = 0.2  # then it asks again whether to stop
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_MAX_LABEL = 100  # characters
_MAX_REPORTED = 1000  # missing names; when there are more, all are forgotten, and reported again


def run(arguments: Namespace) -> int:
    """Record slices until a stop is requested, or until the processes given by -p have ended."""
    with Interrupt() as interrupt:
        start_times = {pid: start_time(pid) for pid in arguments.pid or ()}
        _make_directory(arguments.output_dir)
        written, reported = 0, set[str]()
        for left_s in slots(arguments.every, interrupt):
            try:
                if pids := _alive(start_times) if arguments.pid else target_pids(arguments):
                    _record_slice(arguments, pids, min(arguments.slice, left_s), interrupt, reported)
                    written += 1
            except NoSuchProcess as failure:
                if not arguments.quiet and not arguments.pid:
                    say(failure, *failure.help)
            except SfsampleError as failure:
                if not written:
                    raise
                say(failure, *failure.help)
            if arguments.pid and not _alive(start_times):
                ended = f"process has ended: {', '.join(map(str, start_times))}"
                if not written:
                    raise NoSuchProcess(arguments.pid[0], ended)
                if not arguments.quiet:
                    say(ended)
                break
    return 0


def slots(every_s: float, should_stop: Callable[[], bool]) -> Iterator[float]:
    """Wait for slot after slot; yield how many seconds are left of it.

    A slot that is less than half over is begun late (one slice follows another without a gap when --for
    equals --every); one that is more than half over is missed.
    """
    start, slot = time.monotonic(), 0
    while True:
        while not should_stop() and (wait_s := start + slot * every_s - time.monotonic()) > 0:
            time.sleep(min(wait_s, _MAX_SLEEP_S))
        if should_stop():
            return
        yield start + (slot + 1) * every_s - time.monotonic()
        slot = max(slot + 1, round((time.monotonic() - start) / every_s))


def _alive(start_times: dict[int, int]) -> list[int]:
    """Return the pids that still are the same processes; another one with the pid has another start time."""
    pids = []
    for pid, expected in start_times.items():
        with suppress(NoSuchProcess):
            if start_time(pid) == expected:
                pids.append(pid)
    return pids


def _make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as failure:
        raise SfsampleError(f"cannot write: {directory or repr('')}: {failure.strerror}",
                            "choose another --output-dir") from None  # fmt: skip


def _record_slice(
    arguments: Namespace, pids: list[int], duration_s: float, interrupt: Interrupt, reported: set[str]
) -> None:
    """Record and write one slice; print its outcome, delete old slices."""
    label, suffix = _label(arguments), suffix_of(arguments.format)
    path = _free_path(arguments.output_dir, label, suffix)
    output = Output(path)
    profile = Profile(arguments.rate, timeline=FORMATS[arguments.format].timeline)
    record_processes(arguments, pids, duration_s, interrupt, profile=profile)
    check_begun(profile.stats, pids)
    symbolizer = api.symbolizer(profile, symbol_options(arguments))
    report = with_names(lambda: api.named(profile, symbolizer), symbolizer, interrupt)
    output.write(api.render(report, arguments.format, threads=arguments.threads))
    if not arguments.quiet:
        missing_names = missing_name_lines(_unreported(symbolizer, reported), verbose=arguments.verbose)
        say(f"{path}: {_outcome(profile.stats)}", *profile.stats.failure, *missing_names)
    if arguments.keep:
        _delete_old(arguments.output_dir, label, suffix, arguments.keep)


def _unreported(namer: Symbolizer, reported: set[str]) -> list[str]:
    """Return missing names and unreadable files that are not in `reported`, and add them to it."""
    if len(reported) > _MAX_REPORTED:
        reported.clear()
    causes = {f"{missing.where}: {missing.why}": str(missing) for missing in namer.missing_names()}
    causes |= {problem: problem for problem in namer.problems}
    new = [text for cause, text in causes.items() if cause not in reported]
    reported.update(causes)
    return new


def _outcome(stats: Stats) -> str:
    losses = [
        (stats.late_ticks, "ticks missed"),
        (stats.captures[Capture.FAILED], "captures failed"),
        (stats.samples - stats.stacks[StopReason.OUTERMOST], "stacks truncated"),
    ]
    return ", ".join([f"{stats.samples} samples", *(f"{count} {what}" for count, what in losses if count)])


def _label(arguments: Namespace) -> str:
    """Return the first part of the file names: the target, in characters that are harmless in a path."""
    name = arguments.name or arguments.unit or "-".join(map(str, dict.fromkeys(arguments.pid)))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:_MAX_LABEL] or "target"


def _free_path(directory: str, label: str, suffix: str) -> str:
    """Name the slice after the time; when the clock was set back, after the next second that is free."""
    second = int(time.time())
    while True:
        path = os.path.join(directory, f"{label}-{time.strftime(_TIME_FORMAT, time.gmtime(second))}{suffix}")
        if not os.path.lexists(path):
            return path
        second += 1


def _delete_old(directory: str, label: str, suffix: str, keep: int) -> None:
    """Delete all but the newest slices of this label and format, whose names sort by time."""
    slice_name = re.compile(re.escape(label) + r"-\d{8}T\d{6}Z" + re.escape(suffix))
    try:
        for name in sorted(filter(slice_name.fullmatch, os.listdir(directory)))[:-keep]:
            os.unlink(os.path.join(directory, name))
    except OSError as failure:
        say(f"cannot delete: {failure.filename}: {failure.strerror}")
