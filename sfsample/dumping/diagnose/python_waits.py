"""Finds the thread that has to act before a thread in Python goes on, from the facts of all threads.

An RLock states its owner.  A Lock does not: it is held by the one thread that is inside a `with` of it, if
both slept at one instant.  A
result is computed by the thread that runs the call; one that is still in the queue of an executor waits for
its workers, each of which may wait for another result there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sfsample.dumping.model import ThreadDump
from sfsample.python.waits import PythonWait


class Answer(NamedTuple):
    """What a thread waits for, and the thread that has to act; None: it is not known."""

    kind: str
    what: str
    tid: int | None
    note: str
    idle: bool


def python_wait(thread: ThreadDump, threads: Sequence[ThreadDump], tids: Mapping[int, int]) -> Answer | None:
    """Return what a thread waits for, as Python says.  `tids`: its namespace's thread ids -> sfsample's."""
    wait = thread.facts.wait
    if wait is None:
        return None
    tid, note = tids.get(wait.owner), ""
    if wait.kind == "lock":
        tid, note = _entered(thread, wait, threads)
    elif wait.kind == "future":
        tid, note = _computes(thread, wait, threads)
    return Answer(wait.kind, wait.what, tid, note, wait.idle)


def _entered(thread: ThreadDump, wait: PythonWait, threads: Sequence[ThreadDump]) -> tuple[int | None, str]:
    holders = [other for other in threads if wait.address in other.facts.entered]
    if len(holders) == 1 and (thread.asleep and holders[0].asleep):
        spans = thread.asleep, holders[0].asleep
        if max(spans)[0] <= min(end for _, end in spans):
            return holders[0].tid, "in a with statement"
    return None, "a Lock notes no owner"


def _computes(thread: ThreadDump, wait: PythonWait, threads: Sequence[ThreadDump]) -> tuple[int | None, str]:
    runners = [other.tid for other in threads if wait.address in other.facts.runs]
    if runners:
        return (runners[0], "") if len(runners) == 1 else (None, "")
    queue = next((other.facts.pool for other in threads if wait.address in other.facts.pending), 0)
    workers = [other for other in threads if queue and other.facts.pool == queue]
    if not workers:
        return None, ""
    note = f"it is queued behind all {len(workers)} workers" if len(workers) > 1 else "it is queued"
    if len(workers) > 1 and not all(map(_waits_in_queue, workers)):
        return None, note
    tids = [worker.tid for worker in workers]
    after = tids.index(thread.tid) + 1 if thread.tid in tids else 0  # each waits for any: one after the other
    return tids[after % len(tids)], note


def _waits_in_queue(worker: ThreadDump) -> bool:
    """Whether a worker waits for a result that is in its own queue."""
    wait = worker.facts.wait
    return wait is not None and wait.kind == "future" and wait.address in worker.facts.pending
