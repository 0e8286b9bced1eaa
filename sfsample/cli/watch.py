"""`sfsample watch`: records slices, and hands each to its sinks, for months.

Slot k begins at start + k * every.  For each slot the target is looked up again, and also within one, where
it is missing or has ended: a target that is started again is recorded.  After the first slot no failure ends
the watch, and a full disk never does.  SIGTERM ends the slice, which is kept, and the exit code is 0.
"""

import gc
import os
import re
import signal
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping

from sfsample.cli.config import execute_anew
from sfsample.cli.history_sink import HistorySink
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.pull.door import Door
from sfsample.cli.pull.requested import requested_profile
from sfsample.cli.sd_notify import Watchdog, notify
from sfsample.cli.sinks import Sink
from sfsample.cli.slice_files import FileSink
from sfsample.cli.slice_recorder import SliceRecorder
from sfsample.cli.targets import Targets
from sfsample.cli.terminal import say
from sfsample.cli.triggered import Response
from sfsample.cli.triggers import Triggers
from sfsample.cli.trouble import Trouble, say_at
from sfsample.cli.when import history_directory
from sfsample.core.filesystem import whole_file
from sfsample.errors import NoSuchProcess, SfsampleError, TargetError
from sfsample.process.find import start_time
from sfsample.process.load import LoadMeter
from sfsample.process.stuck import any_stuck, hand_over, take_over

_MAX_SLEEP_S = 0.2  # then it asks again whether to stop
_LOOK_S = 2.0  # between two look-ups of a target that is missing, or has ended
_MIN_SLICE_S = 1.0  # before a requested profile cuts it short; a rest that is shorter is left out
_MAX_LABEL = 100  # characters
_MAX_SHOWN_PIDS = 5
_SET_ASIDE = "SFSAMPLE_SET_ASIDE"  # in the environment: processes that an execution before has set aside

_NOTHING: Mapping[str, object] = {}


def run(arguments: Namespace) -> int:
    """Record slices until a stop is requested, or until the processes given by -p have ended."""
    if arguments.check:
        if arguments.push:
            from sfsample.cli.push.backend import check_credentials

            check_credentials(arguments)
        say(f"{arguments.config or 'flags'}: no mistake found")  # by now it would have been
        return 0
    aside = os.environ.pop(_SET_ASIDE, "")
    take_over(aside)
    with Interrupt() as interrupt:
        while why := _watch(arguments, interrupt, is_anew=bool(aside)):
            os.environ[_SET_ASIDE] = hand_over()
            execute_anew(why)
    return 0


def _watch(arguments: Namespace, interrupt: Interrupt, *, is_anew: bool) -> str:
    """Record slices; return why sfsample is to be executed anew, or ''."""
    watch = Watch(arguments, interrupt, is_anew=is_anew)
    signal.signal(signal.SIGUSR1, lambda *_: watch.triggers.fire())
    if arguments.config is not None:
        signal.signal(signal.SIGHUP, lambda *_: watch.reload())
    if arguments.listen is None:
        watch.run()
        return watch.why_anew
    from sfsample.cli.pull.listen import listening  # http.server takes long to import

    with listening(arguments, watch.door) as where:
        if not arguments.quiet:
            say_at(f"listening on {where}")
        watch.run()
    return watch.why_anew


class Watch:
    """The loop: finds the target, has a slice of it recorded, and answers triggers and requests."""

    def __init__(self, arguments: Namespace, interrupt: Interrupt, *, is_anew: bool = False) -> None:
        """Prepare; `is_anew`: after an execve(2), since which processes given by -p may have ended."""
        self._arguments, self._interrupt, self._watchdog = arguments, interrupt, Watchdog()
        self.why_anew = ""
        begun = _start_time if is_anew else start_time
        starts = {pid: begun(pid) for pid in arguments.pid or ()}
        self._start_times = {pid: start for pid, start in starts.items() if start is not None}
        self._pids: list[int] = []
        self._is_absent = False  # the target, at the end of the last slice
        self._missing = Trouble("it is looked for again for every slice")
        self._targets = Targets(arguments)
        label, history = _label(self._targets.service, arguments.pid), _history_of(arguments)
        sinks = _choose_sinks(arguments, label, history)
        self.door = Door(arguments.every, arguments.slice, [sink.metrics for sink in sinks])
        meter = LoadMeter([one.metric for one in arguments.trigger])
        self.triggers = Triggers(arguments.trigger, arguments.cooldown, meter.read)
        self._response = Response(arguments, arguments.output_dir or history or "", label, sinks)
        self._unwritten = Trouble("the file stays as it is")
        target = self._targets.service or label
        self._recorder = SliceRecorder(arguments, interrupt, self.door, target, sinks)

    def run(self) -> None:
        """Record slices; see `run` of the module."""
        self._recorder.prepare()
        notify("READY=1")
        for left_s in slots(self._arguments.every, self._should_stop, self._serve):
            self._fill(min(self._arguments.slice, left_s))
            if path := self._arguments.metrics_file:
                # the metrics of a process get a prefix, as node_exporter has the same ones
                write_metrics(path, self.door.metrics("sfsample_"), self._unwritten)
            if any_stuck():
                self.why_anew = "begins anew, to release what a call holds that does not return"
            gc.collect()  # a slice has cycles, which would hold its tables for some more slices
            if self._arguments.pid and not _alive(self._start_times):
                if not self._arguments.quiet:
                    say_at(_ended(self._start_times))
                break
        self._recorder.close()

    def reload(self) -> None:
        """End the watch, for the configuration to be read again."""
        self.why_anew = "the configuration is read again"

    def _should_stop(self) -> bool:
        self._watchdog.alive()
        return self._interrupt() or bool(self.why_anew)

    def _fill(self, slice_s: float) -> None:
        """Record a slice; another one where a requested profile cut it, or the target is there again."""
        end_s = time.monotonic() + slice_s
        self.slot(slice_s)
        while not self._should_stop():
            if not self._serve():
                if not self._is_absent or self._arguments.pid:
                    return
                wait_until(min(end_s, time.monotonic() + _LOOK_S), self._should_stop, self._serve)
            if (rest_s := end_s - time.monotonic()) <= _MIN_SLICE_S:
                return
            self.slot(rest_s)

    def slot(self, slice_s: float, flags: Mapping[str, object] = _NOTHING) -> float | None:
        """Record and keep one slice; return how many ticks a second it took, None if it is not kept.

        Nothing cuts a slice short that has `flags` of its own.  Raises what ends the watch.
        """
        uncut_until_s, now_s, ticks = time.monotonic() + _MIN_SLICE_S, time.time(), 0

        def should_stop() -> bool:
            nonlocal ticks
            if ticks != self._recorder.stats.ticks:  # else a tick takes long, perhaps without end
                self._watchdog.alive()
            ticks = self._recorder.stats.ticks
            is_cut = not flags and (self.door.is_due() or self.triggers.is_due())
            is_over = self._interrupt() or bool(self.why_anew)
            return is_over or (is_cut and time.monotonic() > uncut_until_s)

        self._is_absent, hz = False, None
        try:
            stats = self._recorder.record(self._find(), slice_s, should_stop, flags)
            self._is_absent = stats.ended_by == "target"
            hz = stats.achieved_hz if self._recorder.has_kept else None
        except NoSuchProcess as failure:
            self._lose_target(failure, now_s)
        except (SfsampleError, OSError, MemoryError) as failure:
            self._recorder.begin_gap(now_s, str(failure) or "out of memory")
            self._recorder.failed(failure)
        self._recorder.may_fail = False
        return hz

    def _lose_target(self, failure: NoSuchProcess, now_s: float) -> None:
        """Say that there is no target; raise it where none will come."""
        self._is_absent = True
        self._set_pids([])
        self.door.failed(failure)
        self._recorder.begin_gap(now_s, str(failure))
        if not self._arguments.pid:
            self._missing.met(failure, *failure.help)
        elif self._recorder.may_fail:
            raise failure

    def _serve(self) -> bool:
        """Answer a trigger, or a client that waits for a profile; return whether there was one."""
        if fired := self.triggers.take():
            self._response.answer(fired, self._find, self.slot)
            self.door.count("triggers_total", f'{{condition="{fired.name}"}}')
            self.triggers.answered()
            return True
        return self.door.serve(
            lambda wanted: requested_profile(self._arguments, self._find(), wanted, self._interrupt)
        )

    def _find(self) -> list[int]:
        """Return the pids; say so where all of them are new.  Raises NoSuchProcess."""
        arguments, before = self._arguments, self._pids
        if arguments.pid:
            if not (alive := _alive(self._start_times)):
                raise NoSuchProcess(arguments.pid[0], _ended(self._start_times))
            return self._set_pids(alive)
        found = self._set_pids(self._targets.pids())
        was_missing = self._missing.over()
        if not set(found) & set(before) and (was_missing or not arguments.quiet):
            shown = ", ".join(map(str, found[:_MAX_SHOWN_PIDS]))
            more = f" and {len(found) - _MAX_SHOWN_PIDS} more" if len(found) > _MAX_SHOWN_PIDS else ""
            say_at(f"found {self._targets.service}: process{'es' * (len(found) != 1)} {shown}{more}")
        return found

    def _set_pids(self, pids: list[int]) -> list[int]:
        self._pids = self.triggers.pids = pids
        self.door.targets = len(pids)
        return pids


def write_metrics(path: str, metrics: str, trouble: Trouble) -> None:
    """Replace the file, which the textfile collector of node_exporter reads at any time."""
    try:
        with whole_file(path, 0o644) as file:
            file.write(metrics.encode())
        trouble.over()
    except OSError as failure:
        trouble.met(f"cannot write: {path}: {failure.strerror}")


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
        if not wait_until(start + slot * every_s, should_stop, between):
            return
        if (current := round((time.monotonic() - start) / every_s)) > slot:  # `between` took long
            slot = current
            continue
        yield start + (slot + 1) * every_s - time.monotonic()
        slot = max(slot + 1, round((time.monotonic() - start) / every_s))


def wait_until(
    at_s: float, should_stop: Callable[[], bool], between: Callable[[], bool] = lambda: False
) -> bool:
    """Wait, and call `between` meanwhile; False when a stop was requested."""
    while not should_stop() and (wait_s := at_s - time.monotonic()) > 0:
        if not between():
            time.sleep(min(wait_s, _MAX_SLEEP_S))
    return not should_stop()


def _history_of(arguments: Namespace) -> str | None:
    """Return the directory of the history that is kept; None: there are only files."""
    wants_one = arguments.history or arguments.push or arguments.output_dir is None
    return history_directory(arguments.history) if wants_one and not arguments.no_history else None


def _choose_sinks(arguments: Namespace, label: str, history: str | None) -> list[Sink]:
    """Return the sinks; that of the history comes before that which pushes it."""
    sinks: list[Sink] = [] if arguments.output_dir is None else [FileSink(arguments, label)]
    if history is not None:
        sinks.append(HistorySink(arguments, history))
    if history is not None and arguments.push:
        from sfsample.cli.push.sink import PushSink  # http.client takes long to import

        sinks.append(PushSink(arguments, history))
    return sinks


def _ended(pids: Iterable[int]) -> str:
    return f"process has ended: {', '.join(map(str, pids))}"


def _alive(start_times: dict[int, int]) -> list[int]:
    """Return the pids that still are the same processes; another one with the pid has another start time.

    One that cannot be looked at now has not ended.
    """
    return [pid for pid, expected in start_times.items() if _start_time(pid, expected) == expected]


def _start_time(pid: int, unless_known: int | None = None) -> int | None:
    try:
        return start_time(pid)
    except NoSuchProcess:
        return None
    except TargetError:
        return unless_known


def _label(service: str, pids: list[int] | None) -> str:
    """Return the first part of the file names: the target, in characters that are harmless in a path."""
    name = service or "-".join(map(str, dict.fromkeys(pids or ())))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:_MAX_LABEL] or "target"
