"""Finds the thread that has to act before a thread in Python goes on, from the facts of all threads.

An RLock states its owner, and a Thread its id.  A Lock states none: its holder is the one thread that is
inside a `with` of it.  The result of a future is computed by the thread that runs the call.  A call that is
still queued waits for the workers of the executor, each of which may wait for another result there.  The
facts of two threads are combined only if both slept at one instant, because addresses are reused soon.
"""

from collections.abc import Mapping, Sequence

from sfsample.core.wait_kind import WaitKind
from sfsample.dumping.model import ThreadDump, slept_together
from sfsample.python.waits import PythonWait


def thread_to_act(
    thread: ThreadDump, wait: PythonWait, threads: Sequence[ThreadDump], tids: Mapping[int, int]
) -> tuple[int | None, str]:
    """Return the thread that has to act (None: unknown), and a note.

    `tids` maps thread ids of the target's namespace to those of sfsample's.
    """
    if wait.kind is WaitKind.LOCK:
        holders = [other for other in threads if wait.address in other.facts.entered]
        return _one_of(thread, holders, "in a with statement", "a Lock notes no owner")
    if wait.kind is WaitKind.FUTURE:
        runners = [other for other in threads if wait.address in other.facts.runs]
        return _one_of(thread, runners, "", "") if runners else _next_worker(thread, wait, threads)
    return tids.get(wait.owner), ""


def _one_of(
    thread: ThreadDump, others: Sequence[ThreadDump], known: str, unknown: str
) -> tuple[int | None, str]:
    is_sure = len(others) == 1 and slept_together([thread, *others])
    return (others[0].tid, known) if is_sure else (None, unknown)


def _next_worker(
    thread: ThreadDump, wait: PythonWait, threads: Sequence[ThreadDump]
) -> tuple[int | None, str]:
    """Return a worker that has to end its call before a queued call begins.

    It is the only worker, or one of a circle.  All workers must be known, as a running one may begin the call
    soon.
    """
    pools = (other.facts.pool for other in threads)
    pool = next((pool for pool in pools if pool and wait.address in pool.pending), None)
    workers = [other for other in threads if pool and other.facts.pool == pool]
    if pool is None or len(workers) != pool.workers or not slept_together([thread, *workers]):
        return None, "it is queued" if pool else ""
    waits = (worker.facts.wait for worker in workers)
    if len(workers) > 1 and not all(wait and wait.address in pool.pending for wait in waits):
        return None, "it is queued"
    tids = [worker.tid for worker in workers]
    after = tids.index(thread.tid) + 1 if thread.tid in tids else 0  # worker after this one, to make a circle
    return tids[after % len(tids)], "it is queued"
