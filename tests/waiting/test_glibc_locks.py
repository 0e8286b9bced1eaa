"""glibc locks are recognised from memory, and not where function, futex operation and memory disagree.

tests/live/test_hangs.py shows that the layouts are glibc's.
"""

import struct
from collections.abc import Mapping

import pytest

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.waiting.glibc_locks import Lock, lock_of
from tests.builders.hang_builder import LOCK_PI, WAIT, WAIT_BITSET, futex, thread, words

AT = 0x5000
ALIVE, NONE = {1: 1, 7: 7, 8: 8}, dict[int, int]()


def find_lock(  # noqa: PLR0917 - the order of futex(2)
    function: str | None,
    word: int,
    operation: int,
    value: int,
    memory: Memory,
    sleepers: Mapping[int, int] = NONE,
    timeout: int = 0,
) -> Lock | None:
    call = futex(word, operation, value, timeout)
    return lock_of(thread(None, function, "|", "main", call=call, memory=memory).waiting, ALIVE, sleepers)


def mutex(lock: int = 2, owner: int = 7) -> Memory:
    return words(AT, {0: lock, 8: owner})


def test_mutex_has_its_owner() -> None:
    for function in ("pthread_mutex_lock", "___pthread_mutex_lock@@GLIBC_2.2.5", "pthread_cond_wait"):
        assert find_lock(function, AT, WAIT, 2, mutex()) == Lock("mutex", AT, 7)


@pytest.mark.parametrize("function", ["pthread_mutex_timedlock", "__pthread_mutex_clocklock_common"])
def test_timed_mutex_waits_for_an_instant(function: str) -> None:
    assert find_lock(function, AT, WAIT_BITSET, 2, mutex()) == Lock("mutex", AT, 7)
    assert find_lock(function, AT, WAIT_BITSET, 1, mutex()) is None


def test_timed_mutex_is_recognised_in_a_c_library_without_symbols() -> None:
    words_of = {0: 2, 8: 7, 12: 1, 16: 0}
    for changed, expected in (
        ({}, Lock("mutex", AT, 7)), ({0: 1}, None), ({8: 99}, None), ({8: 0}, None), ({12: 0}, None),
        ({16: 0x5000}, None),
    ):  # fmt: skip
        for operation in (WAIT, WAIT_BITSET):
            memory = words(AT, words_of | changed)
            assert find_lock(None, AT, operation, 2, memory, timeout=0x7000) == expected
    assert find_lock(None, AT, WAIT, 2, words(AT, words_of)) is None, (
        "an untimed wait leaves a frame with a name"
    )
    assert find_lock(None, AT, WAIT_BITSET, 0, words(AT, words_of), timeout=0x7000) is None


def test_mutex_without_a_living_owner_says_so() -> None:
    assert find_lock("pthread_mutex_lock", AT, WAIT, 2, mutex(owner=0)) == Lock(
        "mutex", AT, None, "between two owners"
    )
    released = find_lock("pthread_mutex_lock", AT, WAIT, 2, mutex(lock=0))
    assert released == Lock("mutex", AT, None, "between two owners")
    taken = find_lock("pthread_mutex_lock", AT, WAIT, 2, mutex(lock=1))
    assert taken == Lock("mutex", AT, 7), "by a thread that did not sleep, before the woken one"
    lost = find_lock("pthread_mutex_lock", AT, WAIT, 2, mutex(owner=99))
    assert lost == Lock("mutex", AT, 99, "which has ended without unlocking it")


@pytest.mark.parametrize(
    ("function", "operation", "value", "memory"),
    [
        ("pthread_mutex_lock", WAIT, 1, mutex()),  # glibc's waiters wait for 2
        ("pthread_mutex_lock", WAIT_BITSET, 2, mutex()),
        ("pthread_mutex_lock", WAIT, 2, mutex(lock=3)),  # another structure
        ("pthread_mutex_lock", WAIT, 2, BytesMemory(0, b"")),
        ("malloc", WAIT, 2, mutex()),  # an internal lock of libc has no owner field
        (None, WAIT, 2, mutex()),
    ],
)
def test_mutex_is_not_recognised(function: str | None, operation: int, value: int, memory: Memory) -> None:
    assert find_lock(function, AT, operation, value, memory) is None


def test_function_must_be_in_the_c_library() -> None:
    static = thread("pthread_mutex_lock", "main", call=futex(AT, WAIT, 2), memory=mutex())
    assert lock_of(static.waiting, ALIVE, NONE) == Lock("mutex", AT, 7), "a static program has no C library"
    own_function = thread(None, "|", "pthread_mutex_lock", "main", call=futex(AT, WAIT, 2), memory=mutex())
    assert lock_of(own_function.waiting, ALIVE, NONE) is None


def test_priority_inheriting_mutex_has_its_owner() -> None:
    assert find_lock(None, AT, LOCK_PI, 0, words(AT, {0: 0x80000007})) == Lock("mutex", AT, 7)
    assert find_lock(None, AT, LOCK_PI, 0, words(AT, {0: 0x80000063})) is None


def test_thread_to_which_the_kernel_has_given_a_mutex_does_not_wait_for_itself() -> None:
    woken = thread(call=futex(AT, LOCK_PI, 0), memory=words(AT, {0: 0x80000007})).waiting
    assert lock_of(woken._replace(ns_tid=7), ALIVE, NONE) == Lock("mutex", AT, None, "which it has just got")


def test_mutex_that_processes_share_may_have_its_owner_in_another_process() -> None:
    shared = WAIT & ~128
    assert find_lock("pthread_mutex_lock", AT, shared, 2, mutex(owner=99)) == Lock("mutex", AT, 99)
    assert find_lock("pthread_mutex_lock", AT, shared, 2, mutex()) == Lock("mutex", AT, 7)
    word = 99 | 0x80000000
    robust = find_lock(None, AT, shared, word, words(AT, {0: word, 8: 99, 16: 16}))
    assert robust == Lock("mutex", AT, 99)
    held = words(AT, {0: 1 | 2 | 1 << 3, 24: 99})
    reader = find_lock("pthread_rwlock_rdlock", AT + 8, shared, 3, held)
    assert reader == Lock("read lock", AT, 99, "for writing")
    assert find_lock("pthread_rwlock_rdlock", AT + 8, shared, 3, words(AT, {0: 3})) is None, "no writer"


def test_condition_variable_of_musl_is_no_mutex() -> None:
    call = futex(AT, WAIT, 2)
    for sp, expected in ((AT - 200, None), (AT - 5000, Lock("mutex", AT, 7)), (AT + 8, Lock("mutex", AT, 7))):
        asleep = call._replace(syscall=call.syscall._replace(sp=sp))
        waiting = thread("pthread_cond_timedwait", "|", "main", call=asleep, memory=mutex()).waiting
        assert lock_of(waiting, ALIVE, NONE) == expected


def once(*functions: str, value: int = 5) -> Lock | None:
    waiting = thread(*functions, "|", "main", call=futex(AT, 0, value), memory=words(AT, {})).waiting
    return lock_of(waiting, ALIVE, NONE)


def test_initialisation_by_another_thread_is_recognised_near_the_call() -> None:
    assert once("__pthread_once_slow.isra.0") == Lock("once", AT, None)
    assert once("futex_wait", "__pthread_once") == Lock("once", AT, None)
    assert once("syscall", value=0x10100) == Lock("once", AT, None), "a static variable of C++"
    assert once("syscall") is None
    assert once("f", "g", "__pthread_once_slow") is None, "the function that is called once waits itself"


def test_robust_mutex_has_its_owner() -> None:
    contended = 7 | 0x80000000
    words_of = {0: contended, 8: 7, 16: 16}
    for changed, expected in (({}, Lock("mutex", AT, 7)), ({0: 7}, None), ({8: 8}, None), ({16: 1}, None)):
        memory = words(AT, words_of | changed)
        for function in (None, "pthread_mutex_lock"):
            assert find_lock(function, AT, WAIT, contended, memory) == expected
    ended = words(AT, {0: 99 | 0x80000000, 8: 99, 16: 16})
    assert find_lock(None, AT, WAIT, 99 | 0x80000000, ended) is None


BEFORE_2_41, SINCE_2_41 = {0: 6, 16: 6, 20: 6, 36: 3 << 3}, {0: 6, 28: 3 << 3}


@pytest.mark.parametrize(
    ("group", "layout"), [(40, BEFORE_2_41), (44, BEFORE_2_41), (32, SINCE_2_41), (36, SINCE_2_41)]
)
def test_condition_variable_counts_its_waiters(group: int, layout: dict[int, int]) -> None:
    base = AT + 64  # other memory lies before it
    memory = words(AT, {64 + at: value for at, value in layout.items()})
    assert find_lock("pthread_cond_timedwait", base + group, WAIT_BITSET, 0, memory) == Lock(
        "condition", base, None, "3 waiters"
    )
    no_waiter = words(AT, {64 + at: value for at, value in layout.items() if value != 3 << 3})
    assert find_lock("pthread_cond_wait", base + group, WAIT_BITSET, 0, no_waiter) is None
    wrong_sequence = words(AT, {64 + at: value for at, value in layout.items()} | {72: 9})
    assert find_lock("pthread_cond_wait", base + group, WAIT_BITSET, 0, wrong_sequence) is None, (
        "more woken than ever waited"
    )


def test_reader_behind_a_writer_names_it() -> None:
    held = words(AT, {0: 1 | 2 | 1 << 3, 24: 8})
    assert find_lock("pthread_rwlock_rdlock", AT + 8, WAIT_BITSET, 3, held) == Lock(
        "read lock", AT, 8, "for writing"
    )
    assert find_lock("pthread_rwlock_rdlock", AT + 8, WAIT_BITSET, 3, words(AT, {0: 3, 24: 99})) is None


def test_reader_behind_a_waiting_writer_has_no_owner() -> None:
    state = 2 | 4 | 2 << 3
    lock = find_lock("pthread_rwlock_rdlock", AT, WAIT_BITSET, state, words(AT, {0: state}))
    assert lock is not None
    assert (lock.address, lock.owner) == (AT, None)
    assert lock.note.startswith("held by 2 readers, ")
    assert find_lock("pthread_rwlock_rdlock", AT, WAIT_BITSET, state, words(AT, {0: state + 8})) is None, (
        "the lock has changed since"
    )


def test_writer_behind_a_writer_or_readers() -> None:
    held = words(AT, {0: 1 | 2, 24: 8})
    assert find_lock("pthread_rwlock_wrlock", AT + 12, WAIT_BITSET, 1, held) == Lock(
        "write lock", AT, 8, "for writing"
    )
    lock = find_lock("pthread_rwlock_wrlock", AT + 8, WAIT_BITSET, 0, words(AT, {0: 2 | 1 << 3}))
    assert lock is not None
    assert lock.note.startswith("held by 1 reader, ")
    assert find_lock("pthread_rwlock_wrlock", AT + 12, WAIT_BITSET, 1, words(AT, {})) is None


def test_semaphore_is_recognised_with_and_without_symbols() -> None:
    memory = words(AT, {0: 0, 4: 2})
    expected = Lock("semaphore", AT, None, "value 0, 2 waiters")
    assert find_lock("sem_wait", AT, WAIT_BITSET, 0, memory) == expected
    assert find_lock(None, AT, WAIT_BITSET, 0, memory, {AT: 2}) == expected
    assert find_lock(None, AT, WAIT_BITSET, 0, memory, {AT: 1}) is None, "it counts two"
    assert find_lock("sem_wait", AT, WAIT_BITSET, 0, words(AT, {0: 1, 4: 2})) is None, "it is free"


def test_locks_of_a_big_endian_machine() -> None:
    def big(values: dict[int, int]) -> Memory:
        return PiecewiseMemory(words(AT, values, byteorder="big"))

    assert find_lock("pthread_mutex_lock", AT, WAIT, 2, big({0: 2, 8: 7})) == Lock("mutex", AT, 7)
    semaphore = big({0: 2, 4: 0})  # the value is the low half of a word, here the second one
    expected = Lock("semaphore", AT, None, "value 0, 2 waiters")
    assert find_lock("sem_wait", AT + 4, WAIT_BITSET, 0, semaphore) == expected
    alone = {AT + 4: 2}
    assert find_lock(None, AT + 4, WAIT_BITSET, 0, semaphore, alone) == expected
    condition = {4: 6, 16: 6, 20: 6, 36: 3 << 3}  # __wseq, of 64 bits, is first
    assert find_lock("pthread_cond_wait", AT + 40, WAIT_BITSET, 0, big(condition)) == Lock(
        "condition", AT, None, "3 waiters"
    )


def test_barrier_counts_arrivals() -> None:
    memory = words(AT, {0: 5, 4: 2, 8: 4})
    assert find_lock("pthread_barrier_wait", AT + 4, WAIT, 2, memory) == Lock(
        "barrier", AT, None, "3 of 4 have arrived"
    )
    assert find_lock("pthread_barrier_wait", AT + 4, WAIT, 2, words(AT, {})) is None


def joined(tid: int, first: int = AT + 16, last: int = AT + 16, futex_offset: int = -32) -> Memory:
    """Return the part of struct pthread that begins with the tid."""
    return BytesMemory(AT, struct.pack("<IIQQq", tid, 0, last, first, futex_offset))


def test_joined_thread_is_recognised() -> None:
    expected = Lock("thread", AT, 7)
    assert find_lock(None, AT, WAIT_BITSET, 7, joined(7)) == expected
    assert find_lock(None, AT, WAIT_BITSET, 7, joined(7, 0x5018, 0x6018)) == expected, (
        "it holds robust mutexes"
    )
    assert find_lock(None, AT, WAIT_BITSET, 99, joined(99)) is None, "no such thread"
    assert find_lock(None, AT, WAIT_BITSET, 7, joined(0)) is None, "it has ended since"
    for other in (
        joined(7, last=0x6018),
        joined(7, first=0x5018),
        joined(7, 0, 0),
        joined(7, futex_offset=0),
    ):
        assert find_lock(None, AT, WAIT_BITSET, 7, other) is None, "no struct pthread"
    assert find_lock(None, AT, WAIT_BITSET, 7, words(AT, {0: 7})) is None


def test_calls_that_wait_for_no_lock_give_none() -> None:
    assert lock_of(thread("read", "|", "main").waiting, ALIVE, NONE) is None
    assert find_lock("pthread_mutex_lock", AT, 1, 2, mutex()) is None, "it wakes"
