"""Finds the thread that has to act before a waiting Python thread can go on.

An RLock notes the id of its owner, and a Thread its own id.  A Lock notes no owner: a thread holds the
Lock if it is the only thread inside a `with` statement of the Lock.  A future gets its result from the thread
that runs its call.  A queued call waits until a worker of its executor is free.  sfsample combines the facts
of two threads only if both slept at one instant, because the program soon reuses addresses.
"""

from collections.abc import Mapping, Sequence

from sfsample.core.wait_kind import WaitKind
from sfsample.runtimes.cpython.waits import NO_THREAD, PythonWait
from sfsample.waiting.thread import WaitingThread, slept_together

_MAX_USERS_NAMED = 3  # threads that a note names as users of a Lock
_LOST = "held by no thread of this process, so no thread can release it"


def thread_to_act(
    thread: WaitingThread, wait: PythonWait, threads: Sequence[WaitingThread], tids: Mapping[int, int]
) -> tuple[int | None, str]:
    """Return the tid of the thread that has to act (None: unknown), and a note; `tids`: see `WaitContext`."""
    is_shared = wait.what.startswith("multiprocessing")
    if wait.kind is WaitKind.LOCK:
        holders = [other for other in threads if wait.address in other.facts.entered]
        last = tids.get(wait.owner)
        note = f"last taken by {'itself' if last == thread.tid else f'thread {last}'}" if last else ""
        alone = ", and no other thread can release it" * (len(threads) == 1)
        if is_shared:
            alone = f"; another process {'took' if wait.owner == NO_THREAD else 'may hold'} it"
        users = [other for other in threads if other != thread and wait.address in (other.facts.uses or ())]
        if users and _all_slept(thread, *users):
            users.sort(key=lambda user: user.facts.wait is None)  # users that wait come first
            names = ", ".join(f"{user.tid} ({user.name})" for user in users[:_MAX_USERS_NAMED])
            more = ", ..." * (len(users) > _MAX_USERS_NAMED)
            alone = f"; used by thread{'s' * (len(users) > 1)} {names}{more}"
        return _one_of(thread, holders, "in a with statement", note or f"a Lock notes no owner{alone}")
    if wait.kind is WaitKind.FUTURE:
        runners = [other for other in threads if wait.address in other.facts.runs]
        return _one_of(thread, runners, "", "") if runners else _next_worker(thread, wait, threads)
    # if no thread ran, the list of Python's threads, in which the owner is missing, is complete
    is_certain = wait.owner == NO_THREAD and _all_slept(*threads)
    return tids.get(wait.owner), ("another process holds it" if is_shared else _LOST) * is_certain


def _one_of(
    thread: WaitingThread, others: Sequence[WaitingThread], note_if_sure: str, note_if_unsure: str
) -> tuple[int | None, str]:
    is_sure = len(others) == 1 and _all_slept(thread, *others)
    return (others[0].tid, note_if_sure) if is_sure else (None, note_if_unsure)


def _next_worker(
    thread: WaitingThread, wait: PythonWait, threads: Sequence[WaitingThread]
) -> tuple[int | None, str]:
    """Return the tid of a worker that has to end its call before a queued call begins, and a note.

    The tid is known if the executor has one worker, or if all workers wait for queued calls.  If sfsample
    does not see a worker, the tid is None, because this worker may begin the call soon.
    """
    pools = (other.facts.pool for other in threads)
    pool = next((pool for pool in pools if pool and wait.address in pool.pending), None)
    workers = [other for other in threads if pool and other.facts.pool == pool]
    if pool is None or len(workers) != pool.workers or not _all_slept(thread, *workers):
        return None, "it is queued" if pool else ""
    waits = (worker.facts.wait for worker in workers)
    if len(workers) > 1 and not all(wait and wait.address in pool.pending for wait in waits):
        return None, "it is queued"
    tids = [worker.tid for worker in workers]
    after = tids.index(thread.tid) + 1 if thread.tid in tids else 0  # index of the worker after `thread`
    return tids[after % len(tids)], "it is queued"


def _all_slept(*threads: WaitingThread) -> bool:
    return slept_together([thread.asleep for thread in threads])
