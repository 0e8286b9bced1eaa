"""All processes of a recording: those that were named, and with -s their descendants.

Law: a descendant is watched from the tick at which it was seen until it ends; then its files are closed and
nothing is kept for it but its samples.  That one cannot be looked at is counted and told, never fatal.  When
there are very many new ones, all others have their turn before the rest of them.  When the last of those that
were named has ended, it is over.
"""

import time
from collections.abc import Callable, Sequence

from sfsample.errors import NoSuchProcess, TargetError
from sfsample.process.descendants import Descendants
from sfsample.process.process import LiveProcess
from sfsample.recording.process_sampler import ProcessSampler, TickTime
from sfsample.recording.recorder import BEGINNING, Since
from sfsample.recording.stats import Stats

_FIRST_S, _LATER_S = 1.0, 0.05  # to open new ones: before the first tick, in each
Watch = Callable[[LiveProcess, Since], ProcessSampler]


class ProcessSet:
    """Watches `named`, and the descendants that `family` opens in the way of `watch`."""

    def __init__(
        self, named: Sequence[ProcessSampler], family: Descendants | None, watch: Watch, stats: Stats
    ) -> None:
        self._named = list(named)
        self._descendants: list[ProcessSampler] = []
        self._unsettled: list[ProcessSampler] = []
        self._family = family
        self._watch = watch
        self._stats = stats
        self._last = BEGINNING

    @property
    def _all(self) -> list[ProcessSampler]:
        return [*self._named, *self._descendants]

    @property
    def longest_stop_ns(self) -> int:
        """The time for which the thread that was stopped longest of those alive has been, in all."""
        return max((watched.longest_stop_ns for watched in self._all), default=0)

    def adopt(self, *, force: bool = True, first: bool = True) -> None:
        """Begin to watch the descendants that were born since the last time, as many as there is time for."""
        until = time.perf_counter() + (_FIRST_S if first else _LATER_S)
        for found in self._family.born(force=force) if self._family else ():
            self.settled()  # opening takes time, in which threads that have stopped must not wait
            if isinstance(found, TargetError):
                self._count(found)
            else:
                self._stats.subprocesses.watched += 1
                self._descendants.append(self._watch(found, self._last))
            if time.perf_counter() >= until:
                break

    def _count(self, refusal: TargetError) -> None:
        if isinstance(refusal, NoSuchProcess):
            self._stats.subprocesses.short_lived += 1
            return
        self._stats.subprocesses.refused += 1
        self._stats.note(f"subprocess not recorded: {refusal}")

    def tick(self, instant: TickTime, *, refresh: bool, go_on: Callable[[], bool]) -> bool:
        """Look at every process; False when those that were named have ended.

        `go_on` is asked now and then; when it says False, what was not looked at yet is left.
        """

        def meanwhile() -> bool:
            self.settled()
            return go_on()

        self.adopt(force=refresh, first=False)
        for watched in self._all:
            self.settled()
            if not watched.tick(instant, refresh=refresh, meanwhile=meanwhile):
                self._end(watched)
            elif not watched.settled() and watched not in self._unsettled:
                self._unsettled.append(watched)
        self._last = Since(self._last.tick + 1, instant.at_ns)
        return bool(self._named)

    def _end(self, watched: ProcessSampler) -> None:
        watched.finish()
        self._unsettled = [one for one in self._unsettled if one is not watched]
        if watched in self._named:
            self._named.remove(watched)  # whoever opened it closes it
        else:
            self._descendants.remove(watched)
            watched.close()

    def settled(self) -> bool:
        """Capture threads that have stopped by now; False while one is still to stop."""
        self._unsettled = [watched for watched in self._unsettled if not watched.settled()]
        return not self._unsettled

    def await_stop(self, seconds: float) -> None:
        """Sleep until a thread that is still to stop does, but not longer."""
        self._unsettled[0].await_stop(seconds)

    def finish(self) -> None:
        """End with all of them."""
        if self._family and self._family.waiting:
            why = "subprocess not recorded: the recording ended before its turn"
            self._stats.note(why, self._family.waiting)
        for watched in self._all:
            self._end(watched)

    def close(self) -> None:
        """Close the descendants, and the door to more of them."""
        for watched in self._descendants:
            watched.close()
        if self._family:
            self._family.close()
