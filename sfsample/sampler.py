"""The loop: at every tick, capture the threads that count, unwind the copies, count the stacks.

Law: the schedule is fixed at the start (tick k is due at start + k / rate); a tick that is missed is counted
and never made up for.  Unwinding happens while the target runs.  The clock is injected.  A failure to
capture one thread costs that sample and is counted.
"""

import resource
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol

from sfsample.errors import NotPermitted
from sfsample.look import Look, Looker
from sfsample.model import Capture, StopReason
from sfsample.profile import Location, Profile, kernel_places, locate
from sfsample.replay.store import BadStacks
from sfsample.target.kernel_stack import REFUSED
from sfsample.target.live import LiveProcess
from sfsample.target.procfs import Stat
from sfsample.target.tracer import Missed
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES, Unwinder

Mode = Literal["cpu", "wall"]

_DOZE_S = 0.1  # look this often whether to stop
_SETTLE_S = 0.001  # and this often after a thread that did not stop in time: it may be stopped now
_REFRESH_S = 1.0  # look this often whether a library was replaced by another at the same place


class Clock(Protocol):
    """Seconds, from any origin."""

    def now(self) -> float:
        """Return the time."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class SystemClock:
    """The monotonic clock."""

    now = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class Options(NamedTuple):
    """What to record.  `duration` in seconds; None: until told to stop or the target ends."""

    rate: float = 99.0
    duration: float | None = None
    mode: Mode = "cpu"
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS
    max_frames: int = MAX_FRAMES
    timeline: bool = False  # keep when each sample was taken
    bad_stacks: BadStacks | None = None  # keep the incomplete ones here
    kernel: bool = False  # where sleeping threads are in the kernel


def check(options: Options) -> None:
    """Raise ValueError for an option that makes no sense."""
    if options.mode not in ("cpu", "wall"):
        raise ValueError(f'mode must be "cpu" or "wall", not {options.mode!r}')
    if not options.rate > 0:
        raise ValueError(f"rate must be positive, not {options.rate}")
    if options.duration is not None and not options.duration > 0:
        raise ValueError(f"duration must be positive, not {options.duration}")
    if options.max_frames < 1:
        raise ValueError(f"max_frames must be at least 1, not {options.max_frames}")


class Sampler:
    """Samples processes into one profile."""

    def __init__(
        self,
        targets: Sequence[LiveProcess],
        options: Options,
        clock: Clock | None = None,
        profile: Profile | None = None,
    ) -> None:
        self._options = options
        self._clock = clock or SystemClock()
        self.profile = profile or Profile(options.rate, timeline=options.timeline)
        self._watched = [_Watched(target, self.profile, options) for target in targets]

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no target is left."""
        stats, clock = self.profile.stats, self._clock
        cpu, start = time.thread_time(), clock.now()
        self.profile.started_ns = time.time_ns()
        try:
            stats.ended_by = self._loop(start, should_stop)
        finally:
            stats.duration_s = clock.now() - start
            stats.sampler_cpu_s = time.thread_time() - cpu
            stats.sampler_max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            for watched in self._watched:
                watched.finish()
        return self.profile

    def _loop(self, start: float, should_stop: Callable[[], bool]) -> str:
        rate, duration = self._options.rate, self._options.duration
        stats = self.profile.stats
        total = None if duration is None else max(1, round(duration * rate))
        refresh_at = start + _REFRESH_S
        alive = self._watched
        before = start
        while total is None or stats.ticks < total:
            due = start + stats.ticks / rate
            if not self._wait(due, should_stop):
                return "signal"
            missed = int((self._clock.now() - due) * rate)
            if missed > 0:
                missed = missed if total is None else min(missed, total - stats.ticks)
                stats.late_ticks += missed
                stats.ticks += missed
                continue
            stats.ticks += 1
            now = self._clock.now()
            refresh = now >= refresh_at
            if refresh:
                refresh_at = now + _REFRESH_S
            instant = Instant(round((now - start) * 1e9), round((now - before) * 1e9))
            before = now
            alive = [w for w in alive if w.tick(instant, refresh=refresh)]
            if not alive:
                return "target"
        assert total is not None  # noqa: S101 - the loop ends only when it is
        return "duration" if self._wait(start + total / rate, should_stop) else "signal"

    def _wait(self, until: float, should_stop: Callable[[], bool]) -> bool:
        while not should_stop():
            left = until - self._clock.now()
            if left <= 0:
                return True
            late = [watched for watched in self._watched if not watched.settled()]
            self._clock.sleep(min(left, _SETTLE_S if late else _DOZE_S))
        return False


class Instant(NamedTuple):
    """A tick that is taken: when, since the start, and how long after the one before."""

    at_ns: int
    elapsed_ns: int


class _Watched:
    """One target, its unwinder, and where its frames are."""

    def __init__(self, target: LiveProcess, profile: Profile, options: Options) -> None:
        self._target = target
        self._profile = profile
        self._mode = options.mode
        self._bad_stacks = options.bad_stacks
        profile.homes[target.pid] = target.home
        self._unwinder = Unwinder(target.index, steppers=options.steppers, max_frames=options.max_frames)
        self._looker = Looker(target, self._unwinder, kernel=options.kernel)
        self._places: dict[tuple[int, bool, str], Location] = {}
        self._generation = 0
        self._program: tuple[bytes, ...] = ()

    def settled(self) -> bool:
        """Release threads that stopped too late; False while one is still to stop."""
        return self._target.settled()

    def tick(self, instant: Instant, *, refresh: bool) -> bool:
        """Take one sample of every thread that counts; False when the process has ended."""
        target, index = self._target, self._target.index
        threads = target.threads()  # first of all: see ProcFs.thread_stats
        self.settled()
        index.expire()
        if refresh or (threads and threads[0][1].program != self._program):
            index.refresh()  # after exec another program can lie at the same addresses
            self._program = threads[0][1].program if threads else ()
        self._looker.keep_only(tid for tid, _ in threads)
        for tid, stat in threads:
            if tid == target.pid or target.pid not in self._profile.processes:
                self._profile.processes[target.pid] = stat.name
            if stat.state == "R" or self._mode == "wall":
                self._sample(tid, stat, instant)
        return bool(threads)

    def _sample(self, tid: int, stat: Stat, instant: Instant) -> None:
        stats, pid = self._profile.stats, self._target.pid
        found = self._look(tid, stat.state)
        if found is None:
            return
        stack = found.stack
        locations = [*kernel_places(found.kernel, pid), *self._locations(found)]
        self._profile.threads[pid, tid] = stat.name
        stats.threads.add((pid, tid, stat.starttime))
        self._profile.add(
            pid, tid, locations, stack, at_ns=instant.at_ns, wall_ns=instant.elapsed_ns, cpu_ns=0
        )
        if stack.stopped_at is not None and stack.stop_reason is not StopReason.MAX_FRAMES:
            stats.problems[f"{stack.stop_reason} at {stack.stopped_at}"] += 1
        if self._bad_stacks is not None:
            self._bad_stacks.keep(stat.name, found.snapshot, stack, self._target.index)

    def _look(self, tid: int, state: str) -> Look | None:
        stats = self._profile.stats
        try:
            found = self._looker.look(tid, state)
        except NotPermitted as refusal:
            if not stats.samples:
                raise
            self._failed(f"{refusal} ({'; '.join(refusal.help)})")
            return None
        if isinstance(found, Missed):
            if not found.gone:
                self._failed(f"not captured: {found.why}")
            return None
        stats.captures[found.snapshot.capture] += 1
        for stop in found.stops:
            stats.pauses.add(stop.stop_ns)
            stats.eintr_prone_stops += stop.eintr
        return found

    def _failed(self, why: str) -> None:
        self._profile.stats.captures[Capture.FAILED] += 1
        self._profile.stats.problems[why] += 1

    def _locations(self, look: Look) -> list[Location]:
        index, places = self._target.index, self._places
        if index.generation != self._generation:
            self._generation = index.generation
            places.clear()
        found = []
        for frame, module in zip(look.stack.frames, look.modules, strict=True):
            key = (frame.pc, frame.exact, frame.found)
            place = places.get(key)
            if place is None:
                place = places[key] = locate(frame, module, self._target.pid)
            found.append(place)
        return found

    def finish(self) -> None:
        """Add what is known only at the end."""
        stats, target = self._profile.stats, self._target
        for module in target.index.modules:
            _ = module.image.sections  # if they are damaged, the names will be missing: say so
            entry = (module.path, bool(module.sframe))
            if entry not in stats.module_paths:
                stats.module_paths.append(entry)
        refused = [REFUSED] if self._looker.kernel_refused else []
        for text in (*target.opener.problems, *target.index.problems, *refused):
            stats.problems[text] += 1
        stats.problems += self._unwinder.doubts
