"""Records slices of `watch`, finds names, and hands slices and gaps to each sink, even if one sink fails."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from sfsample import api
from sfsample.core.quantities import counted
from sfsample.errors import NoReturn, NoSpace, NoSuchProcess, ReadFailed, SfsampleError
from sfsample.history.facts import Slice
from sfsample.process.image_cache import ImageCache
from sfsample.process.thread_files import open_many
from sfsample.process.tracer_thread import with_names
from sfsample.recording.options import RecordOptions
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats, check_result
from sfsample.recording.summary import missing_name_lines, no_sample_lines
from sfsample.report.formats import FORMATS
from sfsample.report.report import Report
from sfsample.report.services import by_service, with_service
from sfsample.report.waits import fold_idle
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.watching.options import WatchOptions
from sfsample.watching.program import Program, Sink, Trouble, notify
from sfsample.watching.pull.door import Door, Wanted

_MIN_GAP_S = 1.0  # least length of a gap; to write a slice takes less time
_LATE = "sfsample was late, or answered a request or a trigger, or the clock was set"
_MIN_LEFT = 0.25  # least share of --max-overhead for samples, however much other work costs
_MIN_PASSED_S = 1.0  # least time over which other costs are spread, because the start is short but costly


class SliceRecorder:
    """Records slices for sinks.  `target`: the name of the target in the flags."""

    def __init__(self, options: WatchOptions, program: Program, door: Door, target: str,
                 sinks: Sequence[Sink]) -> None:  # fmt: skip
        self._options, self._program, self._door, self._target = options, program, door, target
        self._say = program.say
        # True: failures end the watch, except a full disk and a failed or endless system call on the target
        self.may_fail = True
        self.has_kept = False  # True: a sink has kept the last slice
        self.stats = Stats(options.record.rate)  # statistics of the present or the last slice
        self._sinks = [(sink, Trouble(self._say, "slices are lost until then")) for sink in sinks]
        self._lost = Trouble(self._say, "slices are lost until then")  # for failures outside the sinks
        self._reported: set[str] = set()  # printed causes of missing names and of missing samples
        self._share = Share(options.record.max_overhead or 1.0, lambda: time.process_time() - door.served_s)
        self._gap: tuple[float, str] | None = None  # begin of the present gap, and its reason
        self._images = ImageCache()  # open files and processes, which the next slice uses again

    def prepare(self) -> None:
        """Check that the sinks can keep slices."""
        for sink, lost in self._sinks:
            self._attempt(sink.prepare, lost)

    def close(self) -> None:
        """Close the sinks, as the watch ends."""
        if self._gap and self._gap[1] != _LATE:  # _LATE: the time was needed to write the last slice
            self._end_gap(time.time())
        for sink, _ in self._sinks:
            sink.close()
        for trouble in (self._lost, *(lost for _, lost in self._sinks)):
            if slices := trouble.over():
                self._say(f"the last {counted(slices, 'slice')} could not be written")

    def record(self, pids: list[int], slice_s: float, should_stop: Callable[[], bool],
               options: RecordOptions | None) -> Stats:  # fmt: skip
        """Record a slice, and keep it if it has a sample.  `options`: instead of the options of the watch."""
        share = self._share.left()
        options = options or replace(self._options.record, max_overhead=share)
        self.has_kept = False
        profile = Profile(options.rate, timeline=FORMATS[self._options.files.format].timeline)
        stats = self.stats = profile.stats
        self._record(pids, slice_s, options, profile, should_stop)
        begin_s = profile.started_ns / 1e9
        self._share.sampled_s = stats.sampler_cpu_s
        for text in self._unsaid({text: text for text in stats.set_aside}):
            self._say(text)
        if why_empty := _why_empty(stats, pids):
            self.begin_gap(begin_s, f"no sample: {why_empty[0]}")
            self._say_empty(stats, *why_empty)
        else:
            self._end_gap(begin_s)
            self._keep(profile, begin_s)
        end_s = begin_s + stats.duration_s
        if stats.ended_by == "target":
            self.begin_gap(end_s, "the target ended")
        elif self._options.slice_s == self._options.every:
            self.begin_gap(end_s, _LATE)
        self._door.closed(stats)
        return stats

    def requested(self, pids: list[int], wanted: Wanted) -> bytes:
        """Record a requested profile; return it as pprof, or b"" as soon as the client has gone."""
        base, ends = self._options.record, self._program.should_stop
        if ends() or not pids:  # an empty profile would say that nothing ran
            raise SfsampleError("sfsample ends" if ends() else "the process has ended")
        mode, rate = wanted.mode or base.mode, wanted.rate or base.rate
        options = replace(base, mode=mode, rate=rate, perf_events=base.perf_events if mode == "cpu" else None)
        profile = Profile(rate)
        self._record(pids, wanted.seconds, options, profile, lambda: ends() or wanted.gone)
        check_result(profile.stats, pids)
        return b"" if wanted.gone else api.render(self._named(profile)[0], "pprof")

    def _record(self, pids: list[int], seconds: float, options: RecordOptions, profile: Profile,
                should_stop: Callable[[], bool]) -> None:  # fmt: skip
        open_many()
        api.record(
            pids, seconds, options, should_stop=should_stop, profile=profile, tell=self._program.tell,
            all_of=bool(self._options.target.pid),  # processes of targets without -p come and go
            images=self._images,
        )  # fmt: skip

    def _named(self, profile: Profile) -> tuple[Report, Symbolizer]:
        symbolizer = api.symbolizer(profile, self._program.symbols)
        end, ends = symbolizer.give_up, self._program.should_stop
        report = with_names(lambda: api.named(profile, symbolizer), end, ends)
        return report if self._options.idle else fold_idle(report)[0], symbolizer

    def failed(self, failure: Exception, lost: Trouble | None = None) -> None:
        """Report that a slice is lost.  Raises the failure if the watch must end."""
        if self.may_fail and not isinstance(failure, (NoSpace, NoReturn, ReadFailed)):
            raise failure
        what = str(failure) or "out of memory"
        self._door.failed(what)
        (lost or self._lost).met(what, *getattr(failure, "help", ()))

    def _attempt(self, work: Callable[[], str | None], lost: Trouble) -> str | None:
        try:
            return work()
        except (SfsampleError, OSError, MemoryError) as failure:
            self.failed(failure, lost)
            return None

    def _unsaid(self, texts: Mapping[str, str]) -> list[str]:
        """Return the texts whose causes (the keys) were not printed yet; note the causes as printed."""
        new = [text for cause, text in texts.items() if cause not in self._reported]
        self._reported.update(texts)
        return new

    def _say_empty(self, stats: Stats, why: str, *details: str) -> None:
        """Print why there is no slice; print each help line (`details`) only once."""
        new = self._unsaid({text: text for text in details})
        if not self._options.quiet:
            self._say(f"no slice: no sample in {stats.duration_s:.1f} s: {why}", *stats.failure, *new)

    def _keep(self, profile: Profile, begin_s: float) -> None:
        """Hand a slice to the sinks, and print the result."""
        options, stats = self._options, profile.stats
        report, symbolizer = self._named(profile)
        report = report._replace(stats=report.stats.having(cpu_ms_by_second=profile.cpu_ms_by_second()))
        whole = Slice(begin_s, begin_s + stats.duration_s, self._target, report)
        if options.target.name or options.target.unit:  # one service
            parts = [whole._replace(report=with_service(report, self._target, profile))]
        else:
            parts = [whole._replace(service=n, report=part) for n, part in by_service(report, profile)]
        places = [self._attempt(partial(sink.add, whole, parts), lost) for sink, lost in self._sinks]
        self.has_kept = any(places)
        over = [lost for place, (_, lost) in zip(places, self._sinks, strict=True) if place is not None]
        for lost in (*over, self._lost):
            if slices := lost.over():
                self._say(f"slices are written again: {counted(slices, 'slice')} lost")
        notify(f"STATUS={self._target}: {_outcome(stats)}")
        if not options.quiet and self.has_kept:
            causes = {f"{name.where}: {name.why}": str(name) for name in symbolizer.missing_names()}
            new = self._unsaid(causes | {problem: problem for problem in symbolizer.problems})
            missing = missing_name_lines(new, verbose=options.verbose)
            self._say(f"{', '.join(filter(None, places))}: {_outcome(stats)}", *stats.failure, *missing)

    def begin_gap(self, now_s: float, why: str) -> None:
        """Note that a gap begins.  The first reason other than `_LATE` is kept."""
        began_s, first_why = self._gap or (now_s, _LATE)
        self._gap = (began_s, why if first_why == _LATE else first_why)

    def _end_gap(self, now_s: float) -> None:
        begin_s, why = self._gap or (now_s, "")
        self._gap = None
        for sink, lost in self._sinks if now_s - begin_s > _MIN_GAP_S else ():
            self._attempt(partial(sink.add_gap, self._target, begin_s, now_s, why), lost)


class Share:
    """The share of a CPU for samples: the share of the watch minus other costs.

    Other costs are the costs of the last slice for opening processes, for names, and for writing.  If samples
    took more than their share, the excess is another cost: the first stacks of a slice cost most.
    `own_cpu_s` returns the CPU time of sfsample without the answers to HTTP clients.
    """

    def __init__(self, share: float, own_cpu_s: Callable[[], float]) -> None:
        self._share, self._own_cpu_s = share, own_cpu_s
        self._left = share  # share that the samples of the last slice were allowed
        self._began_s, self._cpu_s = time.monotonic(), self._own_cpu_s()  # begin of the last slice
        self.sampled_s = 0.0  # CPU time of the samples of the last slice

    def left(self) -> float:
        """Begin a slice; return the share that its samples may take."""
        now_s, cpu_s = time.monotonic(), self._own_cpu_s()
        passed_s = now_s - self._began_s
        besides_s = cpu_s - self._cpu_s - min(self.sampled_s, self._left * passed_s)
        self._began_s, self._cpu_s, self.sampled_s = now_s, cpu_s, 0.0
        besides = max(0.0, besides_s) / max(passed_s, _MIN_PASSED_S)
        self._left = max(self._share - besides, self._share * _MIN_LEFT)
        return self._left


def _why_empty(stats: Stats, pids: list[int]) -> list[str]:
    """Return the reason why a slice has no sample, and remedies; []: the slice has a sample."""
    if stats.samples:
        return []
    try:
        check_result(stats, pids)
    except NoSuchProcess:
        raise
    except SfsampleError as failure:
        return [str(failure), *failure.help]
    return list(no_sample_lines(stats)) if stats.taken_ticks else ["the slice ended before the first tick"]


def _outcome(stats: Stats) -> str:
    losses = [loss.text for loss in stats.losses if loss.number]
    return ", ".join([counted(stats.samples, "sample"), *losses])
