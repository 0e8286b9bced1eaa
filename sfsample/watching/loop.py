"""Runs the loop of a watch: records slices for months, and hands each slice to the sinks.

Slot k of the time begins at start + k * every.  The loop looks for the target at the begin of each slot, and
every two seconds while the target is missing.  After the first slot, no failure ends the watch.
"""

import gc
import re
import time
from collections.abc import Callable, Iterable, Iterator

from sfsample.core.quantities import listed
from sfsample.errors import NoSuchProcess, SfsampleError, TargetError
from sfsample.process.find_target import TargetFinder
from sfsample.process.load import LoadMeter
from sfsample.process.permission.check import start_time
from sfsample.process.stuck import any_stuck
from sfsample.recording.options import RecordOptions
from sfsample.watching.history_sink import HistorySink
from sfsample.watching.options import WatchOptions
from sfsample.watching.program import Program, Sink, Trouble, notify
from sfsample.watching.pull.door import Door
from sfsample.watching.slice_files import FileSink, SliceFiles
from sfsample.watching.slice_recorder import SliceRecorder
from sfsample.watching.triggers import Response, Triggers

_MAX_SLEEP_S = 0.2  # time between two checks for a request to stop
_LOOK_S = 2.0  # time between two searches for a target that is missing or has ended
_ALIVE_S = 30.0  # time between two messages to systemd; less than WatchdogSec= of the unit (cli/service.py)
_MIN_SLICE_S = 1.0  # least length of a slice before or after a requested profile
_MAX_LABEL = 100  # characters
_MAX_SHOWN_PIDS = 5  # pids in a message


class Watch:
    """Finds the target, records its slices, and answers triggers and requests."""

    def __init__(self, options: WatchOptions, program: Program, *, is_anew: bool = False) -> None:
        """Prepare a watch.  `is_anew`: sfsample has restarted itself, so processes of -p may have ended."""
        self._options, self._program, self._say = options, program, program.say
        self._alive_due_s = 0.0  # time of the next message to systemd
        self.why_anew = ""
        begun = _start_time if is_anew else start_time
        starts = {pid: begun(pid) for pid in options.target.pid}
        self._start_times = {pid: start for pid, start in starts.items() if start is not None}
        self._pids: list[int] = []
        self._is_absent = False  # the target was missing at the end of the last slice
        self._missing = Trouble(self._say, "sfsample looks for the target again at every slice")
        self._targets = TargetFinder(options.target)
        label = _label(self._targets.service, options.target.pid)
        sinks = _choose_sinks(options, program, label)
        self.door = Door(options.every, options.slice_s, sinks)
        meter = LoadMeter([condition.metric for condition in options.triggers])
        self.triggers = Triggers(options.triggers, options.cooldown, meter.read, self._say)
        dumps = SliceFiles(options.files.output_dir or program.history or "", label, ".dump.txt")
        self._response = Response(options, dumps, sinks, program)
        target = self._targets.service or label
        self._recorder = SliceRecorder(options, program, self.door, target, sinks)

    def run(self) -> None:
        """Record slices until a stop is requested, or until all processes of -p have ended."""
        self._recorder.prepare()
        if self._program.history is not None and not self._options.quiet:
            self._say(f"the history is in {self._program.history}")
        notify("READY=1")
        for left_s in slots(self._options.every, self._should_stop, self._serve):
            self._fill(min(self._options.slice_s, left_s))
            if any_stuck():
                self.why_anew = "restarts, to release threads that a stuck system call holds"
            gc.collect()  # else reference cycles would keep this slice's tables during the next slices
            if self._options.target.pid and not _alive(self._start_times):
                if not self._options.quiet:
                    self._say(_ended(self._start_times))
                break
        self._recorder.close()

    def reload(self) -> None:
        """End the watch, so that sfsample reads the configuration again."""
        self.why_anew = "the configuration is read again"

    def _say_alive(self) -> None:
        """Every 30 s, tell systemd's watchdog that sfsample goes on; call this method often."""
        if time.monotonic() >= self._alive_due_s:
            self._alive_due_s = time.monotonic() + _ALIVE_S
            notify("WATCHDOG=1")

    def _should_stop(self) -> bool:
        self._say_alive()
        return self._program.should_stop() or bool(self.why_anew)

    def _fill(self, slice_s: float) -> None:
        """Record a slice; after a request, or when the target returns, fill the slot with another slice."""
        end_s = time.monotonic() + slice_s
        self.slot(slice_s)
        while not self._should_stop():
            if not self._serve():
                if not self._is_absent or self._options.target.pid:
                    return
                wait_until(min(end_s, time.monotonic() + _LOOK_S), self._should_stop, self._serve)
            if (rest_s := end_s - time.monotonic()) <= _MIN_SLICE_S:
                return
            self.slot(rest_s)

    def slot(self, slice_s: float, options: RecordOptions | None = None) -> float | None:
        """Record and keep one slice; return its ticks per second; None: the slice is not kept.

        A request or a trigger cuts a slice short, unless the slice has its own `options`.  Raises only
        failures that end the watch.
        """
        uncut_until_s, now_s, ticks = time.monotonic() + _MIN_SLICE_S, time.time(), 0

        def should_stop() -> bool:
            nonlocal ticks
            if ticks != self._recorder.stats.ticks:  # only after a tick, so systemd notices an endless one
                self._say_alive()
            ticks = self._recorder.stats.ticks
            is_cut = options is None and (self.door.is_due() or self.triggers.is_due())
            is_over = self._program.should_stop() or bool(self.why_anew)
            return is_over or (is_cut and time.monotonic() > uncut_until_s)

        self._is_absent, hz = False, None
        try:
            stats = self._recorder.record(self._find(), slice_s, should_stop, options)
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
        """Report that the target is missing; raise the failure if the watch must end."""
        self._is_absent = True
        self._set_pids([])
        self.door.failed(failure)
        self._recorder.begin_gap(now_s, str(failure))
        if not self._options.target.pid:
            self._missing.met(failure, *failure.help)
        elif self._recorder.may_fail:
            raise failure

    def _serve(self) -> bool:
        """Answer a trigger, or a client that waits for a profile; return False if neither waits."""
        if fired := self.triggers.take():
            self._response.answer(fired, self._find, self.slot)
            self.door.count("triggers_total", f'{{condition="{fired.name}"}}')
            self.triggers.answered()
            return True
        return self.door.serve(lambda wanted: self._recorder.requested(self._find(), wanted))

    def _find(self) -> list[int]:
        """Return the pids of the target; print them if all are new.  Raises NoSuchProcess."""
        pids, before = self._options.target.pid, self._pids
        if pids:
            if not (alive := _alive(self._start_times)):
                raise NoSuchProcess(pids[0], _ended(self._start_times))
            return self._set_pids(alive)
        found = self._set_pids(self._targets.pids())
        was_missing = self._missing.over()
        if not set(found) & set(before) and (was_missing or not self._options.quiet):
            shown = listed([*map(str, found)], _MAX_SHOWN_PIDS)
            self._say(f"found {self._targets.service}: process{'es' * (len(found) != 1)} {shown}")
        return found

    def _set_pids(self, pids: list[int]) -> list[int]:
        self._pids = self.triggers.pids = pids
        self.door.targets = len(pids)
        return pids


def slots(every_s: float, should_stop: Callable[[], bool], between: Callable[[], bool]) -> Iterator[float]:
    """Wait for one slot after another; at the begin of a slot, yield the seconds until the next slot.

    The wait calls `between`, which returns True if it did some work.  A slot that begins late by less than
    half a slot is shortened.  A slot that would begin even later is left out.
    """
    start, slot = time.monotonic(), 0
    while wait_until(start + slot * every_s, should_stop, between):
        if (current := round((time.monotonic() - start) / every_s)) > slot:  # `between` took long
            slot = current
            continue
        yield start + (slot + 1) * every_s - time.monotonic()
        slot = max(slot + 1, round((time.monotonic() - start) / every_s))


def wait_until(at_s: float, should_stop: Callable[[], bool], between: Callable[[], bool]) -> bool:
    """Wait until `at_s` (time.monotonic), and call `between`; return False if a stop was requested."""
    while not should_stop() and (wait_s := at_s - time.monotonic()) > 0:
        if not between():
            time.sleep(min(wait_s, _MAX_SLEEP_S))
    return not should_stop()


def _choose_sinks(options: WatchOptions, program: Program, label: str) -> list[Sink]:
    """Return the sinks.  HistorySink comes before PushSink: a slice is kept first, then sent."""
    sinks: list[Sink] = []
    if (directory := options.files.output_dir) is not None:
        sinks.append(FileSink(directory, options.files, options.keep, label, program.say))
    if program.history is not None:
        sinks.append(HistorySink(program.history, options.keep.of_history(), program.say))
    if program.history is not None and options.push.backends:
        from sfsample.watching.push.sink import PushSink  # http.client takes long to import

        sinks.append(PushSink(options.push, program.history, program.say))
    return sinks


def _ended(pids: Iterable[int]) -> str:
    return f"process has ended: {', '.join(map(str, pids))}"


def _alive(start_times: dict[int, int]) -> list[int]:
    """Return the pids whose start time is unchanged, or cannot be read."""
    return [pid for pid, expected in start_times.items() if _start_time(pid, expected) == expected]


def _start_time(pid: int, unless_known: int | None = None) -> int | None:
    try:
        return start_time(pid)
    except NoSuchProcess:
        return None
    except TargetError:
        return unless_known


def _label(service: str, pids: Iterable[int]) -> str:
    """Return the first part of file names: the target, in characters that are safe in a path."""
    name = service or "-".join(map(str, dict.fromkeys(pids)))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:_MAX_LABEL] or "target"
