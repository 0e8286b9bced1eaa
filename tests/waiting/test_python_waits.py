"""Which thread has to act, from the facts of threads that were read one after the other."""

from sfsample.core.wait_kind import WaitKind
from sfsample.runtimes.cpython.waits import NO_THREAD, Pool, PythonFacts, PythonWait
from sfsample.waiting.python_waits import thread_to_act
from sfsample.waiting.thread import WaitingThread
from tests.builders.hang_builder import seen, thread

FUTURE, OTHER = 0x1000, 0x2000
LOCK = PythonWait(WaitKind("lock"), "threading.Lock 0x4000", 0x4000)
RESULT, OTHER_RESULT = (
    PythonWait(WaitKind("future"), "the result of a Future", at) for at in (FUTURE, OTHER)
)


def one(
    tid: int, span: tuple[float, float], counts: tuple[int, int] = (5, 5), **facts: object
) -> WaitingThread:
    known = PythonFacts()._replace(**facts)
    return seen(thread("f", tid=tid), *span, counts).waiting._replace(facts=known)


def acts(*threads: WaitingThread) -> int | None:
    wait = threads[0].facts.wait
    assert wait is not None
    return thread_to_act(threads[0], wait, threads, {})[0]


def test_facts_of_two_threads_count_only_where_both_slept_at_one_instant() -> None:
    for wait, holds in ((LOCK, {"entered": {LOCK.address}}), (RESULT, {"runs": (FUTURE,)})):
        waits = one(1, (1.0, 2.0), wait=wait)
        assert acts(waits, one(2, (1.5, 2.5), **holds)) == 2
        assert acts(waits, one(2, (2.5, 3.0), **holds)) is None, "the address may be that of another object"
        assert acts(waits, one(2, (1.5, 2.5), (5, 6), **holds)) is None, "it ran between the looks"
        assert acts(waits, one(2, (1.0, 2.0), **holds), one(3, (1.0, 2.0), **holds)) is None


def test_queued_call_waits_for_the_workers_if_all_are_known_and_wait_for_such_calls() -> None:
    def workers(size: int, *waits: PythonWait | None) -> list[WaitingThread]:
        pool = Pool(0x3000, size, frozenset({FUTURE, OTHER}))
        return [one(tid, (1.0, 2.0), wait=wait, pool=pool) for tid, wait in enumerate(waits, 1)]

    assert acts(*workers(1, RESULT)) == 1
    assert acts(*workers(2, RESULT, OTHER_RESULT)) == 2
    assert acts(*workers(2, RESULT)) is None, "the other one runs"
    assert acts(*workers(2, RESULT, LOCK)) is None, "the other one may begin the call soon"
    assert acts(*workers(0, RESULT)) is None, "its executor is gone"


def test_an_owner_that_is_no_thread_of_the_process_is_said_if_no_thread_ran() -> None:
    held = PythonWait(WaitKind("rlock"), "threading.RLock 0x4000", 0x4000, NO_THREAD)
    waits, asleep, ran = one(1, (1.0, 2.0), wait=held), one(2, (1.0, 2.0)), one(2, (1.0, 2.0), (5, 6))
    said = (None, "held by no thread of this process, so no thread can release it")
    assert thread_to_act(waits, held, [waits, asleep], {1: 1, 2: 2}) == said
    assert thread_to_act(waits, held, [waits, ran], {1: 1, 2: 2}) == (None, "")
    shared = held._replace(what="multiprocessing.RLock 0x4000")
    assert thread_to_act(waits, shared, [waits, asleep], {1: 1, 2: 2}) == (None, "another process holds it")


def test_a_lock_without_a_known_owner_says_so() -> None:
    waits, other = one(1, (1.0, 2.0), wait=LOCK), one(2, (1.0, 2.0))
    assert thread_to_act(waits, LOCK, [waits, other], {})[1] == "a Lock notes no owner"
    alone = thread_to_act(waits, LOCK, [waits], {})[1]
    assert alone == "a Lock notes no owner, and no other thread can release it"
    shared = LOCK._replace(what="multiprocessing.Lock 0x4000")
    assert (
        thread_to_act(waits, shared, [waits], {})[1] == "a Lock notes no owner; another process may hold it"
    )
    taken = LOCK._replace(owner=2)
    assert thread_to_act(waits, taken, [waits, other], {1: 1, 2: 2}) == (None, "last taken by thread 2")
