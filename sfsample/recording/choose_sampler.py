"""A recording that takes its time from nobody, where the kernel allows that.

Law: threads are stopped as long as a processor is free for our own work, mostly.  Once none is, others lack
what we use, and the kernel's timers take the samples, which costs a fraction, if we may set them.  So they do
where threads run for microseconds at a time, and have left their processor when we come to stop them.  If
what they copy is not enough (long stacks, other stacks), or they see less, threads are stopped again, for
good.  Only one of the two samples at a time, into one profile; the summary tells.
"""

import time
from collections.abc import Callable, Sequence

from sfsample.errors import TargetError
from sfsample.process.perf_events import may_set
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.free_cpus import FreeCpus
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_sampler import PerfSampler
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler, once_and_for_all
from sfsample.recording.stats import Timers

_CROWDED, _BRIEF = "no processor was free", "threads ran too briefly to be stopped"
_ENOUGH = 20  # samples that should be there, to tell whether they are
_FEW = 0.25  # of them: not by chance, then
_MOST = 0.9  # of the CPU time is seen by stops, mostly


class Relay:
    """Samples processes into one profile: the sampler, and the kernel's timers in its place."""

    def __init__(
        self,
        targets: Sequence[LiveProcess],
        options: RecordOptions,
        stack_bytes: int,
        profile: Profile | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
        crowded: Callable[[], bool] | None = None,
    ) -> None:
        self._targets = targets
        self._options = options
        self._stack_bytes = stack_bytes
        self._tell = tell
        self.profile = profile or Profile(options.rate, timeline=options.timeline)
        self._crowded = crowded or FreeCpus().lacks
        self._may: bool | None = None  # set timers; None: was not tried yet
        self._because = ""  # they are to go on

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no target is left."""
        should_stop, stats = once_and_for_all(should_stop), self.profile.stats
        self._start = start = time.monotonic()
        sampler = PtraceSampler(self._targets, self._options, profile=self.profile, tell=self._tell)
        sampler.run(lambda: should_stop() or self._hands_over(sampler))
        if stats.ended_by != "signal" or should_stop():
            return self.profile
        since = time.monotonic() - start
        stats.timers = Timers(since, because=self._because)
        why = self._by_events(start, should_stop)
        if why:
            stats.timers = Timers(since, time.monotonic() - start, why, self._because)
            again = PtraceSampler(
                self._targets, self._options, profile=self.profile, tell=self._tell, start=start
            )
            again.run(should_stop)
        return self.profile

    def _hands_over(self, sampler: PtraceSampler) -> bool:
        """Return whether timers are to go on: they may and can, and no thread is held, nor will be."""
        if self._may is False:
            return False
        stats = self.profile.stats
        looked = stats.pauses.count or stats.off_processor  # at what sleeps costs next to nothing
        self._because = _CROWDED if self._crowded() else _BRIEF if self._found() < _FEW else ""
        if not self._because or not looked or not sampler.collect():
            return False
        if self._may is None:
            tids = [tid for target in self._targets for tid in target.proc.threads()]
            self._may = may_set(tids, self._targets[0].arch)
        return self._may

    def _found(self) -> float:
        """Return how many samples there are for each that the CPU time is worth; 1 as long as that is few."""
        stats, elapsed = self.profile.stats, time.monotonic() - self._start
        taken = stats.ticks - stats.late_ticks - stats.spared_ticks
        due = stats.cpu_charged_ns / 1e9 * taken / elapsed
        return stats.samples / due if due >= _ENOUGH else 1.0

    def _by_events(self, start: float, should_stop: Callable[[], bool]) -> str:
        """Have the timers take the samples; return why they cannot any longer, empty if it is over.

        On a thread of its own: it lets others go first, for good.
        """
        events = PerfSampler(self._targets, self._options, self._stack_bytes, self.profile, start=start)
        least = self._found() if self._because == _BRIEF else _MOST
        why = ""

        def falls_short() -> bool:
            nonlocal why
            why = why or events.shortfall(least)
            return bool(why)

        def work(stop: Callable[[], bool]) -> str:
            try:
                events.sample(lambda: stop() or falls_short())
            except (TargetError, OSError) as failure:
                return str(failure)
            return why

        return TracerThread(work, should_stop).run()
