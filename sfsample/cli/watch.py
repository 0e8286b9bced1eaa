"""`sfsample watch`: records a slice at regular intervals, for months.

Slice k begins at start + k * every.  For each slice the target is looked up again.  After the first slot no
failure ends the watch, and a full disk never does: a failure that lasts is said once.  SIGTERM ends the
slice, which is written, and the exit code is 0.
"""

import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import suppress
from errno import EDQUOT, ENOSPC, ENOTDIR

from sfsample import api
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.naming import with_names
from sfsample.cli.output_file import check_replaceable
from sfsample.cli.pull.door import Door
from sfsample.cli.pull.requested import requested_profile
from sfsample.cli.sampling import check_result, record_processes
from sfsample.cli.slice_files import SliceFiles
from sfsample.cli.symbol_flags import symbol_options
from sfsample.cli.targets import target_pids
from sfsample.cli.terminal import say, shows_progress
from sfsample.cli.values import suffix_of
from sfsample.core.filesystem import whole_file
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.process.find import start_time
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.recording.summary import missing_name_lines, no_sample_lines
from sfsample.report.formats import FORMATS
from sfsample.symbolize.symbolizer import Symbolizer

_MAX_SLEEP_S = 0.2  # then it asks again whether to stop
_MIN_SLICE_S = 1.0  # before a requested profile cuts it short; a rest that is shorter is left out
_MAX_LABEL = 100  # characters
_MAX_SHOWN_PIDS = 5
_MAX_REPORTED = 1000  # missing names; when there are more, all are forgotten, and reported again


def run(arguments: Namespace) -> int:
    """Record slices until a stop is requested, or until the processes given by -p have ended."""
    with Interrupt() as interrupt:
        watch = Watch(arguments, interrupt)
        if arguments.listen is None:
            watch.run()
            return 0
        from sfsample.cli.pull.listen import listening  # http.server takes long to import

        with listening(arguments, watch.door) as where:
            if not arguments.quiet:
                _say(f"listening on {where}")
            watch.run()
    return 0


class NotWritten(SfsampleError):  # noqa: N818 - reads as what happened
    """A slice cannot be written."""

    def __init__(self, directory: str, failure: OSError) -> None:
        self.is_full = failure.errno in (ENOSPC, EDQUOT)
        remedy = "free some space" if self.is_full else "choose another --output-dir"
        super().__init__(f"cannot write: {directory or repr('')}: {failure.strerror}", remedy)


class Trouble:
    """A failure that may last for many slots: it is said when it begins, and when it changes.

    `until_then` is a help line: what happens as long as it lasts.
    """

    def __init__(self, until_then: str) -> None:
        self._until_then = f"{until_then}; this is said once"
        self._what = ""
        self._slots = 0

    def met(self, what: object, *help_lines: str) -> None:
        """Note it for one slot."""
        self._slots += 1
        if str(what) != self._what:
            self._what = str(what)
            _say(what, *help_lines, self._until_then)

    def over(self) -> int:
        """Return for how many slots it has lasted; it is over."""
        slots, self._what, self._slots = self._slots, "", 0
        return slots


class Watch:
    """What is kept from one slot to the next: the target, its files, and what has been said."""

    def __init__(self, arguments: Namespace, interrupt: Interrupt) -> None:
        self._arguments, self._interrupt = arguments, interrupt
        self.door = Door(arguments.every, arguments.slice)
        self._start_times = {pid: start_time(pid) for pid in arguments.pid or ()}
        self._pids: list[int] = []
        self._has_recorded = False
        self._reported: set[str] = set()  # missing names, and why there was no sample
        self._missing = Trouble("it is looked for again for every slice")
        self._lost = Trouble("slices are lost until then")
        self._not_deleted = Trouble("older files stay")
        self._files = SliceFiles(arguments.output_dir, _label(arguments), suffix_of(arguments.format))

    def run(self) -> None:
        """Record slices; see `run` of the module."""
        try:
            self._make_directory()
        except NotWritten as failure:
            if not failure.is_full:
                raise
        may_fail = True
        for left_s in slots(self._arguments.every, self._interrupt, self._serve):
            end_s = time.monotonic() + min(self._arguments.slice, left_s)
            self.slot(left_s, may_fail=may_fail)
            may_fail = False
            while self._serve() and (rest_s := end_s - time.monotonic()) > _MIN_SLICE_S:
                self.slot(rest_s)
            if self._arguments.pid and not _alive(self._start_times):
                self._end()
                break
        if lost := self._lost.over():
            _say(f"the last {_count(lost, 'slice')} could not be written")

    def slot(self, left_s: float, *, may_fail: bool = False) -> None:
        """Record and write one slice, if the target is there.  `may_fail`: raise SfsampleError."""
        try:
            pids = self._find()
            self.door.targets = len(pids)
            if pids:
                self._record(pids, min(self._arguments.slice, left_s))
        except NoSuchProcess as failure:
            self._pids, self.door.targets = [], 0
            self.door.failed(failure)
            if not self._arguments.pid:
                self._missing.met(failure, *failure.help)
        except (SfsampleError, OSError, MemoryError) as failure:
            if may_fail and not (isinstance(failure, NotWritten) and failure.is_full):
                raise
            self.door.failed(failure)
            self._lost.met(str(failure) or "out of memory", *getattr(failure, "help", ()))

    def _serve(self) -> bool:
        """Record the profile that a client of the pull door waits for; return whether there was one."""
        return self.door.serve(
            lambda wanted: requested_profile(self._arguments, self._find(), wanted, self._interrupt)
        )

    def _find(self) -> list[int]:
        """Return the pids; say so where all of them are new."""
        arguments, before = self._arguments, self._pids
        if arguments.pid:
            return _alive(self._start_times)
        self._pids = target_pids(arguments)
        was_missing = self._missing.over()
        if not set(self._pids) & set(before) and (was_missing or not arguments.quiet):
            _say(f"found {arguments.name or arguments.unit}: {_processes(self._pids)}")
        return self._pids

    def _end(self) -> None:
        ended = f"process has ended: {', '.join(map(str, self._start_times))}"
        if not self._has_recorded:
            raise NoSuchProcess(self._arguments.pid[0], ended)
        if not self._arguments.quiet:
            _say(ended)

    def _record(self, pids: list[int], duration_s: float) -> None:
        """Record one slice; write it if it has a sample."""
        arguments, path = self._arguments, self._files.free_path()
        profile = Profile(arguments.rate, timeline=FORMATS[arguments.format].timeline)
        tell = _say if shows_progress(quiet=arguments.quiet) else lambda _text: None
        uncut_until_s = time.monotonic() + _MIN_SLICE_S

        def should_stop() -> bool:
            return self._interrupt() or (self.door.is_due() and time.monotonic() > uncut_until_s)

        record_processes(arguments, pids, duration_s, should_stop, profile=profile, tell=tell)
        why_empty = _why_empty(profile.stats, pids)
        self._has_recorded = True
        if not why_empty:
            self._write(profile, path)
        elif not arguments.quiet:
            self._say_empty(profile.stats, *why_empty)
        self.door.closed(profile.stats)

    def _say_empty(self, stats: Stats, why: str, *details: str) -> None:
        """Say why there is no file; say what would give one only once."""
        details = tuple(line for line in details if line not in self._reported)
        self._reported.update(details)
        _say(f"no file: no sample in {stats.duration_s:.1f} s: {why}", *stats.failure, *details)

    def _write(self, profile: Profile, path: str) -> None:
        """Write a slice, print its outcome, delete old slices."""
        arguments = self._arguments
        symbolizer = api.symbolizer(profile, symbol_options(arguments))
        report = with_names(lambda: api.named(profile, symbolizer), symbolizer, self._interrupt)
        self._write_file(path, api.render(report, arguments.format, threads=arguments.threads))
        if lost := self._lost.over():
            _say(f"slices are written again: {_count(lost, 'slice')} lost")
        if not arguments.quiet:
            missing = missing_name_lines(_unreported(symbolizer, self._reported), verbose=arguments.verbose)
            _say(f"{path}: {_outcome(profile.stats)}", *profile.stats.failure, *missing)
        self._delete_old(path)

    def _write_file(self, path: str, data: bytes) -> None:
        self._make_directory()  # it may have been removed
        try:
            with whole_file(path, 0o666) as file:
                file.write(data)
        except OSError as failure:
            raise NotWritten(self._files.directory, failure) from None

    def _make_directory(self) -> None:
        """Make the directory if it is missing.  Raises NotWritten, also where no file can be made in it."""
        try:
            os.makedirs(self._files.directory, exist_ok=True)
            check_replaceable(self._files.free_path(), None)
        except FileExistsError:
            not_directory = OSError(ENOTDIR, os.strerror(ENOTDIR))
            raise NotWritten(self._files.directory, not_directory) from None
        except OSError as failure:
            raise NotWritten(self._files.directory, failure) from None

    def _delete_old(self, newest: str) -> None:
        try:
            self._files.delete_old(newest, self._arguments.keep, self._arguments.keep_for)
        except OSError as failure:
            self._not_deleted.met(f"cannot delete: {failure.filename}: {failure.strerror}")


def slots(
    every_s: float, should_stop: Callable[[], bool], between: Callable[[], bool] = lambda: False
) -> Iterator[float]:
    """Wait for slot after slot; yield how many seconds are left of it.

    `between` is called while it waits, and returns whether it did something.

    A slot that is less than half over is begun late (one slice follows another without a gap when --for
    equals --every); one that is more than half over is missed.
    """
    start, slot = time.monotonic(), 0
    while True:
        while not should_stop() and (wait_s := start + slot * every_s - time.monotonic()) > 0:
            if not between():
                time.sleep(min(wait_s, _MAX_SLEEP_S))
        if should_stop():
            return
        if (current := round((time.monotonic() - start) / every_s)) > slot:  # `between` took long
            slot = current
            continue
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


def _why_empty(stats: Stats, pids: list[int]) -> list[str]:
    """Return why a slice has no sample, and what would give some; empty if it has one."""
    if stats.samples:
        return []
    try:
        check_result(stats, pids)
    except NoSuchProcess:
        raise
    except SfsampleError as failure:
        return [str(failure), *failure.help]
    return list(no_sample_lines(stats)) if stats.taken_ticks else ["it ended before the first tick"]


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
        (stats.late_ticks, "tick", " missed"),
        (stats.captures[Capture.FAILED], "capture", " failed"),
        (stats.samples - stats.stacks[StopReason.OUTERMOST], "stack", " truncated"),
    ]
    counts = [f"{_count(number, what)}{lost}" for number, what, lost in losses if number]
    return ", ".join([_count(stats.samples, "sample"), *counts])


def _label(arguments: Namespace) -> str:
    """Return the first part of the file names: the target, in characters that are harmless in a path."""
    name = arguments.name or arguments.unit or "-".join(map(str, dict.fromkeys(arguments.pid)))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:_MAX_LABEL] or "target"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _processes(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:_MAX_SHOWN_PIDS]))
    more = f" and {len(pids) - _MAX_SHOWN_PIDS} more" if len(pids) > _MAX_SHOWN_PIDS else ""
    return f"process{'es' * (len(pids) != 1)} {shown}{more}"


def _say(what: object, *details: str) -> None:
    """Print a line with the time, which is UTC, as in the file names."""
    say(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {what}", *details)
