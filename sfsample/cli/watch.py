"""`sfsample watch`: records slices, and hands each to its sinks, for months.

Slot k begins at start + k * every.  For each slot the target is looked up again, and also within one, where
it is missing or has ended: a target that is started again is recorded.  The sinks learn of the times without
a slice, and why there is none.  After the first slot no failure ends the watch, and a full disk never does: a
failure that lasts is said once.  SIGTERM ends the slice, which is kept, and the exit code is 0.
"""

import gc
import re
import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sfsample import api
from sfsample.cli.choose_sinks import choose_sinks, history_of
from sfsample.cli.config import execute_anew
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.metrics_file import MetricsFile
from sfsample.cli.naming import with_names
from sfsample.cli.pull.door import Door
from sfsample.cli.pull.requested import requested_profile
from sfsample.cli.sampling import check_result, record_processes
from sfsample.cli.sd_notify import Watchdog, notify
from sfsample.cli.sinks import ClosedSlice, Gaps, Sink
from sfsample.cli.slots import slots, wait_until
from sfsample.cli.symbol_flags import symbol_options
from sfsample.cli.targets import Targets
from sfsample.cli.terminal import say, shows_progress
from sfsample.cli.triggered import Response
from sfsample.cli.triggers import Triggers
from sfsample.cli.trouble import Trouble, say_at
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.process.find import start_time
from sfsample.process.load import LoadMeter
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.recording.summary import missing_name_lines, no_sample_lines
from sfsample.report.formats import FORMATS
from sfsample.report.services import by_service
from sfsample.symbolize.symbolizer import Symbolizer

_FIRST_LOOK_S = 1.0  # after the target was missed, or has ended; then twice that, and so on
_MIN_LEFT = 0.25  # of --max-overhead: so much is for samples, whatever the rest costs
_MIN_PASSED_S = 1.0  # between two slices; the first comes at once, after a start that costs more than a slice
_MIN_SLICE_S = 1.0  # before a requested profile cuts it short; a rest that is shorter is left out
_MAX_LABEL = 100  # characters
_MAX_SHOWN_PIDS = 5
_MAX_REPORTED = 1000  # missing names; when there are more, all are forgotten, and reported again

_NOTHING: Mapping[str, object] = {}

_T = TypeVar("_T")


def run(arguments: Namespace) -> int:
    """Record slices until a stop is requested, or until the processes given by -p have ended."""
    if arguments.check:
        if arguments.push:
            from sfsample.cli.push.backend import check_credentials

            check_credentials(arguments)
        say(f"{arguments.config or 'flags'}: no mistake found")  # by now it would have been
        return 0
    with Interrupt() as interrupt:
        while _watch(arguments, interrupt):
            execute_anew()
    return 0


def _watch(arguments: Namespace, interrupt: Interrupt) -> bool:
    """Record slices; return whether the configuration is to be read again."""
    watch = Watch(arguments, interrupt)
    signal.signal(signal.SIGUSR1, lambda *_: watch.triggers.fire())
    if arguments.config is not None:
        signal.signal(signal.SIGHUP, lambda *_: watch.reload())
    if arguments.listen is None:
        watch.run()
        return watch.is_to_reload
    from sfsample.cli.pull.listen import listening  # http.server takes long to import

    with listening(arguments, watch.door) as where:
        if not arguments.quiet:
            say_at(f"listening on {where}")
        watch.run()
    return watch.is_to_reload


class Watch:
    """What is kept from one slot to the next: the target, the sinks, and what has been said."""

    def __init__(self, arguments: Namespace, interrupt: Interrupt) -> None:
        self._arguments, self._interrupt, self._watchdog = arguments, interrupt, Watchdog()
        self.is_to_reload = False
        self._start_times = {pid: start_time(pid) for pid in arguments.pid or ()}
        self._pids: list[int] = []
        self._has_recorded = False
        self._may_fail = False  # a failure ends the watch
        self._reported: set[str] = set()  # missing names, and why there was no sample
        self._missing = Trouble("it is looked for again for every slice")
        self._lost = Trouble("slices are lost until then")
        self._targets = Targets(arguments)
        label, history = _label(self._targets.service, arguments.pid), history_of(arguments)
        sinks = choose_sinks(arguments, label)
        self.door = Door(arguments.every, arguments.slice, [sink.metrics for sink in sinks])
        meter = LoadMeter([one.metric for one in arguments.trigger])
        self.triggers = Triggers(arguments.trigger, arguments.cooldown, meter.read)
        self._response = Response(arguments, arguments.output_dir or history or "", label)
        self._metrics = MetricsFile(arguments.metrics_file, self.door)
        self._sinks = [(sink, Trouble("slices are lost until then")) for sink in sinks]
        self._service = ""  # of process ids: the names that a recording finds
        self._gaps = Gaps(self._add_gap)
        # at the begin of the last slice: the time, and the CPU time of sfsample; what its samples have cost
        self._began_s, self._cpu_s, self._sampled_s = time.monotonic(), time.process_time(), 0.0
        self._hz = 0.0  # ticks a second that the last slice has taken

    def run(self) -> None:
        """Record slices; see `run` of the module."""
        self._may_fail = True
        for sink, lost in self._sinks:
            self._attempt(sink.prepare, lost)
        notify("READY=1")
        for left_s in slots(self._arguments.every, self._should_stop, self._serve):
            self._fill(min(self._arguments.slice, left_s))
            self._metrics.write()
            gc.collect()  # a slice has cycles, which would hold its tables for some more slices
            if self._arguments.pid and not _alive(self._start_times):
                self._end()
                break
        self._gaps.end(time.time())
        for sink, _ in self._sinks:
            sink.close()
        for trouble in (self._lost, *(lost for _, lost in self._sinks)):
            if slices := trouble.over():
                say_at(f"the last {_count(slices, 'slice')} could not be written")

    def reload(self) -> None:
        """End the watch, for the configuration to be read again."""
        self.is_to_reload = True

    def _should_stop(self) -> bool:
        self._watchdog.alive()
        return self._interrupt() or self.is_to_reload

    def _fill(self, slice_s: float) -> None:
        """Record a slice; another one where the target was missing, or ended, and is there again."""
        end_s, pause_s = time.monotonic() + slice_s, _FIRST_LOOK_S
        is_absent = self.slot(slice_s, may_fail=self._may_fail)
        self._may_fail = False
        while not self._should_stop():
            if not self._serve():  # a requested profile has cut the slice short
                rest_s = end_s - time.monotonic()
                if not is_absent or self._arguments.pid or pause_s > rest_s - _FIRST_LOOK_S:
                    return
                wait_until(time.monotonic() + pause_s, self._should_stop, self._serve)
                pause_s *= 2
            if (rest_s := end_s - time.monotonic()) <= _MIN_SLICE_S:
                return
            is_absent = self.slot(rest_s)

    def slot(
        self, slice_s: float, *, may_fail: bool = False, closer: Mapping[str, object] = _NOTHING
    ) -> bool:
        """Record and keep one slice; return whether the target was missing, or has ended.

        `may_fail`: raise SfsampleError.  `closer`: flags that this slice has instead; nothing cuts it short.
        """
        self._may_fail, now_s = may_fail, time.time()
        try:
            pids = self._find()
            self.door.targets, self.triggers.pids = len(pids), pids
            return self._record(pids, slice_s, closer)
        except NoSuchProcess as failure:
            self._pids, self.door.targets, self.triggers.pids = [], 0, []
            self.door.failed(failure)
            self._gaps.begin(now_s, str(failure))
            if not self._arguments.pid:
                self._missing.met(failure, *failure.help)
            return True
        except (SfsampleError, OSError, MemoryError) as failure:
            self._gaps.begin(now_s, str(failure) or "out of memory")
            self._failed(failure, self._lost)
            return False

    def _attempt(self, work: Callable[[], _T], lost: Trouble) -> _T | None:
        """Return what `work` returns; None where it fails, which is said."""
        try:
            return work()
        except (SfsampleError, OSError, MemoryError) as failure:
            self._failed(failure, lost)
            return None

    def _failed(self, failure: Exception, lost: Trouble) -> None:
        """Say that a slice is lost.  Raises the failure if it is one to end the watch."""
        if self._may_fail and not getattr(failure, "is_full", False):
            raise failure
        self.door.failed(failure)
        lost.met(str(failure) or "out of memory", *getattr(failure, "help", ()))

    def _serve(self) -> bool:
        """Answer a trigger, or a client that waits for a profile; return whether there was one."""
        if fired := self.triggers.take():
            sinks = [sink for sink, _ in self._sinks]
            self._response.answer(fired, sinks, self._find, self._look_closer, self._should_stop)
            self.door.triggered(fired.name)
            self.triggers.answered()
            return True
        return self.door.serve(
            lambda wanted: requested_profile(self._arguments, self._find(), wanted, self._interrupt)
        )

    def _look_closer(self, slice_s: float, flags: Mapping[str, object]) -> float:
        self._hz = 0.0
        self.slot(slice_s, closer=flags)
        return self._hz

    def _find(self) -> list[int]:
        """Return the pids; say so where all of them are new.  Raises NoSuchProcess."""
        arguments, before = self._arguments, self._pids
        if arguments.pid:
            if not (alive := _alive(self._start_times)):
                raise NoSuchProcess(arguments.pid[0], _ended(self._start_times))
            return alive
        self._pids = self._targets.pids()
        was_missing = self._missing.over()
        if not set(self._pids) & set(before) and (was_missing or not arguments.quiet):
            say_at(f"found {self._targets.service}: {_processes(self._pids)}")
        return self._pids

    def _end(self) -> None:
        ended = _ended(self._start_times)
        if not self._has_recorded:
            raise NoSuchProcess(self._arguments.pid[0], ended)
        if not self._arguments.quiet:
            say_at(ended)

    def _record(self, pids: list[int], slice_s: float, closer: Mapping[str, object] = _NOTHING) -> bool:
        """Record one slice; keep it if it has a sample.  Return whether the target has ended."""
        arguments = Namespace(**{**vars(self._within_share()), **closer})
        profile = Profile(arguments.rate, timeline=FORMATS[arguments.format].timeline)
        tell = say_at if shows_progress(quiet=arguments.quiet) else lambda _text: None
        uncut_until_s = time.monotonic() + _MIN_SLICE_S

        def should_stop() -> bool:
            is_cut = not closer and (self.door.is_due() or self.triggers.is_due())
            return self._should_stop() or (is_cut and time.monotonic() > uncut_until_s)

        record_processes(arguments, pids, slice_s, should_stop, profile=profile, tell=tell)
        self._sampled_s, self._hz = profile.stats.sampler_cpu_s, profile.stats.achieved_hz
        why_empty = _why_empty(profile.stats, pids)
        self._has_recorded = True
        begin_s = profile.started_ns / 1e9
        end_s, has_ended = begin_s + profile.stats.duration_s, profile.stats.ended_by == "target"
        if not why_empty:
            self._gaps.end(begin_s)
            self._keep(profile, begin_s, end_s)
        else:
            self._gaps.begin(begin_s, f"no sample: {why_empty[0]}")
            if not arguments.quiet:
                self._say_empty(profile.stats, *why_empty)
        if has_ended or arguments.slice == arguments.every:
            late = "a profile was requested" if self.door.is_due() else \
                "a trigger fired" if self.triggers.is_due() else "sfsample was late"  # fmt: skip
            self._gaps.begin(end_s, "the target ended" if has_ended else late)
        self.door.closed(profile.stats)
        return has_ended

    def _within_share(self) -> Namespace:
        """Return the arguments with the share of the time that is left for samples.

        What the last slice has cost besides (to find and open processes, to name, to write) is taken off.
        """
        now_s, cpu_s = time.monotonic(), time.process_time()
        passed_s, besides_s = now_s - self._began_s, cpu_s - self._cpu_s - self._sampled_s
        self._began_s, self._cpu_s, self._sampled_s = now_s, cpu_s, 0.0
        share: float = self._arguments.max_overhead
        left = max(share - max(0.0, besides_s) / max(passed_s, _MIN_PASSED_S), share * _MIN_LEFT)
        return Namespace(**{**vars(self._arguments), "max_overhead": left})

    def _say_empty(self, stats: Stats, why: str, *details: str) -> None:
        """Say why there is no slice; say what would give one only once."""
        details = tuple(line for line in details if line not in self._reported)
        self._reported.update(details)
        say_at(f"no file: no sample in {stats.duration_s:.1f} s: {why}", *stats.failure, *details)

    def _keep(self, profile: Profile, begin_s: float, end_s: float) -> None:
        """Hand a slice to the sinks, and print its outcome."""
        arguments, stats = self._arguments, profile.stats
        symbolizer = api.symbolizer(profile, symbol_options(arguments))
        report = with_names(lambda: api.named(profile, symbolizer), symbolizer, self._interrupt)
        self._service = self._targets.service or _names(profile)
        is_one = arguments.name or arguments.unit
        parts = [(self._service, report)] if is_one else by_service(report, profile)
        closed = ClosedSlice(begin_s, end_s, report, parts, stats)
        places = [self._hand_over(closed, sink, lost) for sink, lost in self._sinks]
        notify(f"STATUS={self._service}: {_outcome(stats)}")
        if lost_before := self._lost.over():
            say_at(f"slices are recorded again: {_count(lost_before, 'slice')} lost")
        if not arguments.quiet and any(places):
            missing = missing_name_lines(_unreported(symbolizer, self._reported), verbose=arguments.verbose)
            say_at(f"{', '.join(filter(None, places))}: {_outcome(stats)}", *stats.failure, *missing)

    def _hand_over(self, closed: ClosedSlice, sink: Sink, lost: Trouble) -> str | None:
        """Return where a sink keeps a slice; None: it does not."""
        place = self._attempt(partial(sink.add, closed), lost)
        if place is not None and (lost_before := lost.over()):
            say_at(f"slices are written again: {_count(lost_before, 'slice')} lost")
        return place

    def _add_gap(self, begin_s: float, end_s: float, why: str) -> None:
        for sink, lost in self._sinks:
            self._attempt(
                partial(sink.add_gap, self._targets.service or self._service, begin_s, end_s, why), lost
            )


def _ended(pids: Iterable[int]) -> str:
    return f"process has ended: {', '.join(map(str, pids))}"


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


def _label(service: str, pids: list[int] | None) -> str:
    """Return the first part of the file names: the target, in characters that are harmless in a path."""
    name = service or "-".join(map(str, dict.fromkeys(pids or ())))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:_MAX_LABEL] or "target"


def _names(profile: Profile) -> str:
    return "+".join(sorted(set(profile.processes.values())))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _processes(pids: list[int]) -> str:
    shown = ", ".join(map(str, pids[:_MAX_SHOWN_PIDS]))
    more = f" and {len(pids) - _MAX_SHOWN_PIDS} more" if len(pids) > _MAX_SHOWN_PIDS else ""
    return f"process{'es' * (len(pids) != 1)} {shown}{more}"
