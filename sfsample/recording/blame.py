"""Adds the stack of a lock's holder to the stacks of the threads that wait for the lock (`--blame`).

At the end of a tick, sfsample reads the owner of each lock, captures the stack of the owner, and reads the
owner again.  If the owner has changed, the tick blames no thread.  An owner that has not run since its last
capture is not captured again.
"""

from collections.abc import Callable

from sfsample.core.snapshot import Capture
from sfsample.modules.location import Location, WaitPlace
from sfsample.process.thread import Thread
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.recorder import Recorder
from sfsample.recording.wait_finder import FoundWait

UNSEEN = "[stack not captured]"  # frame of a holder that did not stop in time, as it waited for a CPU
_MAX_HOPS = 8  # holders in one stack

Owner = Callable[[Thread, FoundWait], int | None]
Look = Callable[[SampledThread], bool]  # captures a thread that has run; False if its stack is unknown


class Blame:
    """Counts the threads of one process that wait for locks, with the stacks of the holders."""

    def __init__(
        self, recorder: Recorder, owner: Owner, find: Callable[[int], SampledThread | None], look: Look
    ) -> None:
        self._recorder = recorder
        self._owner, self._find, self._look = owner, find, look
        self._waiters: dict[SampledThread, Capture | None] = {}
        self._holders: dict[tuple[str, int], SampledThread | None] = {}  # holders at this tick, by lock
        self._unseen: set[SampledThread] = set()  # holders whose stack is unknown at this tick

    def takes(self, thread: SampledThread, capture: Capture | None = None) -> bool:
        """Return True if the thread waits for a lock; `count` counts it.  `capture` None: it has not run."""
        waits = thread.wait is not None and thread.wait.lock is not None
        if waits:
            self._waiters[thread] = capture
        return waits

    def count(self) -> None:
        """Count the threads that wait, each with its chain of holders."""
        waiters, self._waiters = self._waiters, {}
        self._holders.clear()
        self._unseen.clear()
        for thread, capture in waiters.items():
            chain = self._chain(thread) if thread.last_stack else ()
            if thread.gone or thread.last_stack is None:
                continue  # the next sample of the thread will stand for this tick, too
            stack, before = thread.last_stack
            places = (*chain, *thread.places)
            if capture is None and (places == before or self._recorder.is_brief(thread)):
                self._recorder.count_idle([thread])
                continue
            self._recorder.flush(thread)
            thread.last_stack = stack, places
            if capture is not None:
                self._recorder.count_wait(thread, capture)
            else:
                self._recorder.count(thread, Capture.REUSED, self._recorder.now, ran=False)

    def _chain(self, thread: SampledThread) -> tuple[Location, ...]:
        """Return the frames of a chain of holders, the last holder first."""
        chain: tuple[Location, ...] = ()
        seen = [thread]
        while len(seen) <= _MAX_HOPS and (holder := self._holder(seen[-1])) is not None:
            mark = f"[held by]{holder.name or '?'}"
            if holder in seen:
                return (_mark(f"{mark} (a cycle)"), *chain)
            seen.append(holder)
            if holder in self._unseen:
                return (_mark(UNSEEN), _mark(mark), *chain)
            chain = (*holder.places, _mark(mark), *chain)
        return chain

    def _holder(self, thread: SampledThread) -> SampledThread | None:
        wait = thread.wait
        lock = wait.lock if wait else None
        if wait is None or lock is None:
            return None
        if lock not in self._holders:
            self._holders[lock] = self._find_holder(thread, wait)
            if self._holders[lock] is None:
                self._recorder.stats.holders_changed += 1
        still_waits = thread.wait is not None and thread.wait.lock == lock  # the search may capture `thread`
        return self._holders[lock] if still_waits else None

    def _find_holder(self, thread: SampledThread, wait: FoundWait) -> SampledThread | None:
        owner = self._owner(thread.process_thread, wait)
        holder = None if owner is None else self._find(owner)
        if holder is not None and not self._look(holder):
            self._unseen.add(holder)
        return holder if self._owner(thread.process_thread, wait) == owner else None


def _mark(text: str) -> Location:
    return Location(None, 0, 0, wait=WaitPlace(text, ""))
