"""Adds the stack of the holder to the stacks of the threads that wait for a lock, a pipe, ... (`--blame`).

The holder is the thread that can end the wait: the owner of a lock, or a thread of another local process.
At the end of a tick, sfsample finds the holder of each resource, captures its stack, and finds the holder
again.  If the holder has changed, the tick blames no thread.  A holder that has not run since its last
capture is not captured again.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sfsample.core.snapshot import Capture
from sfsample.modules.location import HELD_BY, ONE_OF_SEVERAL, UNSEEN, Location, WaitPlace
from sfsample.process.facts.descriptors import NearEnd
from sfsample.process.thread import Thread
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.recorder import Recorder
from sfsample.recording.wait_finder import FoundWait

if TYPE_CHECKING:
    from sfsample.recording.process_sampler import ProcessSampler

_MAX_HOPS = 8  # holders in one stack


class _Holder(NamedTuple):
    """The thread without which a waiter cannot go on."""

    process: "ProcessSampler"
    thread: SampledThread | None  # None: one of several threads


class Blame:
    """Counts the threads of process `own` that wait for locks, pipes, ..., with the stacks of the holders.

    `others` returns the sampler of another process by its pid, or counts the failure and returns None.
    """

    def __init__(
        self, recorder: Recorder, own: "ProcessSampler", others: Callable[[int], "ProcessSampler | None"]
    ) -> None:
        self._recorder, self._own, self._others = recorder, own, others
        self._waiters: dict[SampledThread, Capture | None] = {}
        self._holders: dict[tuple[object, ...], _Holder | None] = {}  # holders at the last tick, by resource
        self._peers = own.waits.peers if own.waits else None
        self._has_changed = False  # True: at the last tick, a holder changed while sfsample captured it
        self._unsearched: dict[str, NearEnd] = {}  # other ends that were not yet searched at the last tick

    def postpone(self, thread: SampledThread, capture: Capture | None = None) -> bool:
        """Return True if `count` counts the thread: it may have a holder.  `capture` None: it did not run."""
        self._waiters.pop(thread, None)  # a late capture, between two ticks, may have added the thread
        waits = thread.wait is not None and thread.wait.resource is not None
        if waits:
            self._waiters[thread] = capture
        return waits

    def may_differ(self) -> bool:
        """Return True if `count` may find other holders or other stacks of holders than at its last call."""
        if self._has_changed or (self._unsearched and self._peers and self._peers.has_news(self._unsearched)):
            return True
        holders = {h.thread for h in self._holders.values() if h and h.process is not self._own}
        return any(t is None or t.files.counters() != t.off_cpu_counters for t in holders)

    def count(self) -> None:
        """Count the threads that wait, each with its chain of holders."""
        waiters, self._waiters = self._waiters, {}
        self._holders.clear()
        self._has_changed, self._unsearched = False, {}
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
        process, seen = self._own, [thread]
        while len(seen) <= _MAX_HOPS and (found := self._holder(process, seen[-1])) is not None:
            process, holder = found
            names = [process.name] if holder is None or process is not self._own else []
            mark = f"{HELD_BY}{'/'.join([*names, holder.name or '?'] if holder else names)}"
            if holder in seen:
                return (_mark(f"{mark} (a cycle)"), *chain)
            if holder is None or holder.last_stack is None:
                return (_mark(UNSEEN if holder else ONE_OF_SEVERAL), _mark(mark), *chain)
            seen.append(holder)
            chain = (*holder.places, _mark(mark), *chain)
        return chain

    def _holder(self, process: "ProcessSampler", thread: SampledThread) -> _Holder | None:
        wait = thread.wait
        resource = wait.resource if wait else None
        if wait is None or resource is None:
            return None
        key = process, *resource
        if key not in self._holders:
            self._holders[key] = self._find_holder(process, thread.process_thread, wait)
        still_waits = thread.wait and thread.wait.resource == resource  # the search may capture `thread`
        return self._holders[key] if still_waits else None

    def _find_holder(self, process: "ProcessSampler", waiter: Thread, wait: FoundWait) -> _Holder | None:
        waits = process.waits
        found = waits.holder(waiter, wait) if waits else None
        if waits is None or found is None:
            self._unsearched |= self._peers.unsearched(wait.ends) if self._peers else {}
            return None
        pid, tid = found
        other = process if pid == process.process.pid else self._others(pid)
        if other is None:
            return None
        only = next(iter(other.threads), 0) if len(other.threads) == 1 else 0
        holder = other.threads.get(tid or only)
        if holder is not None:
            other.look(holder)
        is_named = holder is not None or (not tid and len(other.threads) > 1)
        if is_named and waits.holder(waiter, wait) == found:
            return _Holder(other, holder)
        self._recorder.stats.holders_changed += 1
        self._has_changed = True
        return None


def _mark(text: str) -> Location:
    return Location(None, 0, 0, wait=WaitPlace(text, ""))
