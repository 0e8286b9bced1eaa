"""A recording that takes its time from nobody, where the kernel allows that.

Law: threads are stopped as long as a processor is free for our own work, mostly.  Once none is, others lack
what we use, and the kernel's timers take the samples, which costs a fraction, if we may set them.  If
what they copy is not enough (long stacks, other stacks, threads that live for too short a time), threads are
stopped again, for good.  Only one of the two samples at a time, into one profile; the summary tells.
"""

import time
from collections.abc import Callable, Sequence

from sfsample.errors import TargetError
from sfsample.event_sampler import EventSampler
from sfsample.profile import Profile
from sfsample.sampler import Options, Sampler, once_and_for_all
from sfsample.stats import Timers
from sfsample.target.live import LiveProcess
from sfsample.target.own_thread import OwnThread
from sfsample.target.perf_events import may_set
from sfsample.target.spare import Spare


class Relay:
    """Samples processes into one profile: the sampler, and the kernel's timers in its place."""

    def __init__(
        self,
        targets: Sequence[LiveProcess],
        options: Options,
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
        self._crowded = crowded or Spare().lacks
        self._may: bool | None = None  # set timers; None: was not tried yet

    def run(self, should_stop: Callable[[], bool] = lambda: False) -> Profile:
        """Sample until the duration is over, `should_stop` says so, or no target is left."""
        should_stop, stats = once_and_for_all(should_stop), self.profile.stats
        start = time.monotonic()
        sampler = Sampler(self._targets, self._options, profile=self.profile, tell=self._tell)
        sampler.run(lambda: should_stop() or self._hands_over(sampler))
        if stats.ended_by != "signal" or should_stop():
            return self.profile
        since = time.monotonic() - start
        stats.timers = Timers(since)
        why = self._by_events(start, should_stop)
        if why:
            stats.timers = Timers(since, time.monotonic() - start, why)
            again = Sampler(self._targets, self._options, profile=self.profile, tell=self._tell, start=start)
            again.run(should_stop)
        return self.profile

    def _hands_over(self, sampler: Sampler) -> bool:
        """Return whether timers are to go on: they may and can, and no thread is held, nor will be."""
        stats = self.profile.stats
        looked = stats.pauses.count or stats.off_processor  # at what sleeps costs next to nothing
        if self._may is False or not self._crowded() or not looked or not sampler.settled():
            return False
        if self._may is None:
            tids = [tid for target in self._targets for tid in target.proc.threads()]
            self._may = may_set(tids, self._targets[0].arch)
        return self._may

    def _by_events(self, start: float, should_stop: Callable[[], bool]) -> str:
        """Have the timers take the samples; return why they cannot any longer, empty if it is over.

        On a thread of its own: it lets others go first, for good.
        """
        events = EventSampler(self._targets, self._options, self._stack_bytes, self.profile, start=start)
        why = ""

        def falls_short() -> bool:
            nonlocal why
            why = why or events.shortfall()
            return bool(why)

        def work(stop: Callable[[], bool]) -> str:
            try:
                events.sample(lambda: stop() or falls_short())
            except (TargetError, OSError) as failure:
                return str(failure)
            return why

        return OwnThread(work, should_stop).run()
