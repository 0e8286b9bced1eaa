"""Whose lock it is: each structure of glibc, and each doubt that must silence us.

Law: tests/live/test_hangs.py shows that the layouts are glibc's; here is what must not be believed.
"""

import struct

import pytest

from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.dumping.diagnose.glibc_locks import Lock, Others, lock_of
from tests.builders.hang_builder import LOCK_PI, WAIT, WAIT_BITSET, futex, thread, words

AT = 0x5000
ALIVE = Others({1, 7, 8}, {}, since_2_25=True)


def judge(  # noqa: PLR0917 - as the kernel has them
    function: str | None,
    word: int,
    operation: int,
    value: int,
    memory: Memory,
    others: Others = ALIVE,
    timeout: int = 0,
) -> Lock | None:
    call = futex(word, operation, value, timeout)
    return lock_of(thread(None, function, "|", "main", call=call, memory=memory), others)


def mutex(lock: int = 2, owner: int = 7) -> Memory:
    return words(AT, {0: lock, 8: owner})


def test_a_mutex() -> None:
    for function in ("pthread_mutex_lock", "___pthread_mutex_lock@@GLIBC_2.2.5", "pthread_cond_wait"):
        assert judge(function, AT, WAIT, 2, mutex()) == Lock("mutex", AT, 7)


@pytest.mark.parametrize("function", ["pthread_mutex_timedlock", "__pthread_mutex_clocklock_common"])
def test_a_mutex_that_is_waited_for_until_an_instant(function: str) -> None:
    assert judge(function, AT, WAIT_BITSET, 2, mutex()) == Lock("mutex", AT, 7)
    assert judge(function, AT, WAIT_BITSET, 1, mutex()) is None


def test_a_mutex_that_is_waited_for_where_the_c_library_has_no_names() -> None:
    words_of = {0: 2, 8: 7, 12: 1, 16: 0}
    for changed, expected in (
        ({}, Lock("mutex", AT, 7)), ({0: 1}, None), ({8: 99}, None), ({8: 0}, None), ({12: 0}, None),
        ({16: 0x5000}, None),
    ):  # fmt: skip
        for operation in (WAIT, WAIT_BITSET):
            memory = words(AT, words_of | changed)
            assert judge(None, AT, operation, 2, memory, timeout=0x7000) == expected
    assert judge(None, AT, WAIT, 2, words(AT, words_of)) is None, "an untimed wait leaves a frame with a name"
    assert judge(None, AT, WAIT_BITSET, 0, words(AT, words_of), timeout=0x7000) is None


def test_a_mutex_that_changes_hands_or_whose_owner_has_ended() -> None:
    assert judge("pthread_mutex_lock", AT, WAIT, 2, mutex(owner=0)) == Lock(
        "mutex", AT, None, "changing hands"
    )
    lost = judge("pthread_mutex_lock", AT, WAIT, 2, mutex(owner=99))
    assert lost == Lock("mutex", AT, 99, "which has ended without unlocking it")


@pytest.mark.parametrize(
    ("function", "operation", "value", "memory"),
    [
        ("pthread_mutex_lock", WAIT, 1, mutex()),  # glibc's waiters wait for 2
        ("pthread_mutex_lock", WAIT_BITSET, 2, mutex()),
        ("pthread_mutex_lock", WAIT, 2, mutex(lock=0)),  # released since
        ("pthread_mutex_lock", WAIT, 2, BytesMemory(0, b"")),
        ("malloc", WAIT, 2, mutex()),  # an internal lock: there is no owner beside it
        (None, WAIT, 2, mutex()),
    ],
)
def test_what_is_no_mutex(function: str | None, operation: int, value: int, memory: Memory) -> None:
    assert judge(function, AT, operation, value, memory) is None


def test_the_function_must_be_the_c_library_s() -> None:
    mine = thread("pthread_mutex_lock", "main", call=futex(AT, WAIT, 2), memory=mutex())
    assert lock_of(mine, ALIVE) == Lock("mutex", AT, 7), "a static program has no C library to tell it from"
    beside = thread(None, "|", "pthread_mutex_lock", "main", call=futex(AT, WAIT, 2), memory=mutex())
    assert lock_of(beside, ALIVE) is None


def test_a_mutex_that_inherits_priority() -> None:
    assert judge(None, AT, LOCK_PI, 0, words(AT, {0: 0x80000007})) == Lock("mutex", AT, 7)
    assert judge(None, AT, LOCK_PI, 0, words(AT, {0: 0x80000063})) is None


def test_a_robust_mutex() -> None:
    waited_for = 7 | 0x80000000
    words_of = {0: waited_for, 8: 7, 16: 16}
    for changed, expected in (({}, Lock("mutex", AT, 7)), ({0: 7}, None), ({8: 8}, None), ({16: 1}, None)):
        memory = words(AT, words_of | changed)
        for function in (None, "pthread_mutex_lock"):
            assert judge(function, AT, WAIT, waited_for, memory) == expected
    gone = words(AT, {0: 99 | 0x80000000, 8: 99, 16: 16})
    assert judge(None, AT, WAIT, 99 | 0x80000000, gone) is None


BEFORE_2_41, SINCE_2_41 = {0: 6, 16: 6, 20: 6, 36: 3 << 3}, {0: 6, 28: 3 << 3}


@pytest.mark.parametrize(
    ("group", "layout"), [(40, BEFORE_2_41), (44, BEFORE_2_41), (32, SINCE_2_41), (36, SINCE_2_41)]
)
def test_a_condition_variable(group: int, layout: dict[int, int]) -> None:
    base = AT + 64  # something is before it
    memory = words(AT, {64 + at: value for at, value in layout.items()})
    assert judge("pthread_cond_timedwait", base + group, WAIT_BITSET, 0, memory) == Lock(
        "condition", base, None, "3 waiters"
    )
    nobody = words(AT, {64 + at: value for at, value in layout.items() if value != 3 << 3})
    assert judge("pthread_cond_wait", base + group, WAIT_BITSET, 0, nobody) is None
    older = words(AT, {64 + at: value for at, value in layout.items()} | {72: 9})
    assert judge("pthread_cond_wait", base + group, WAIT_BITSET, 0, older) is None, (
        "more woken than ever waited"
    )
    old = ALIVE._replace(since_2_25=False)
    assert judge("pthread_cond_wait", base + group, WAIT_BITSET, 0, memory, old) is None, "another layout"


def test_a_reader_behind_a_writer() -> None:
    held = words(AT, {0: 1 | 2 | 1 << 3, 24: 8})
    assert judge("pthread_rwlock_rdlock", AT + 8, WAIT_BITSET, 3, held) == Lock(
        "read lock", AT, 8, "for writing"
    )
    assert judge("pthread_rwlock_rdlock", AT + 8, WAIT_BITSET, 3, words(AT, {0: 3, 24: 99})) is None


def test_a_reader_behind_a_writer_that_waits_for_readers() -> None:
    state = 2 | 4 | 2 << 3
    lock = judge("pthread_rwlock_rdlock", AT, WAIT_BITSET, state, words(AT, {0: state}))
    assert lock is not None
    assert (lock.address, lock.owner) == (AT, None)
    assert lock.note.startswith("held by 2 readers, ")
    assert judge("pthread_rwlock_rdlock", AT, WAIT_BITSET, state, words(AT, {0: state + 8})) is None, (
        "it moved"
    )


def test_writers() -> None:
    held = words(AT, {0: 1 | 2, 24: 8})
    assert judge("pthread_rwlock_wrlock", AT + 12, WAIT_BITSET, 1, held) == Lock(
        "write lock", AT, 8, "for writing"
    )
    lock = judge("pthread_rwlock_wrlock", AT + 8, WAIT_BITSET, 0, words(AT, {0: 2 | 1 << 3}))
    assert lock is not None
    assert lock.note.startswith("held by 1 reader, ")
    assert judge("pthread_rwlock_wrlock", AT + 12, WAIT_BITSET, 1, words(AT, {})) is None


def test_a_semaphore_with_and_without_a_frame_of_its_own() -> None:
    memory = words(AT, {0: 0, 4: 2})
    expected = Lock("semaphore", AT, None, "value 0, 2 waiters")
    assert judge("sem_wait", AT, WAIT_BITSET, 0, memory) == expected
    assert judge(None, AT, WAIT_BITSET, 0, memory, ALIVE._replace(sleepers={AT: 2})) == expected
    assert judge(None, AT, WAIT_BITSET, 0, memory, ALIVE._replace(sleepers={AT: 1})) is None, "it counts two"
    assert judge("sem_wait", AT, WAIT_BITSET, 0, words(AT, {0: 1, 4: 2})) is None, "it is free"


def test_locks_of_a_machine_whose_bytes_go_the_other_way() -> None:
    def big(values: dict[int, int]) -> Memory:
        return PiecewiseMemory(words(AT, values, byteorder="big"))

    assert judge("pthread_mutex_lock", AT, WAIT, 2, big({0: 2, 8: 7})) == Lock("mutex", AT, 7)
    waited_for = big({0: 2, 4: 0})  # a semaphore's value is the low half of a word, here the second one
    expected = Lock("semaphore", AT, None, "value 0, 2 waiters")
    assert judge("sem_wait", AT + 4, WAIT_BITSET, 0, waited_for) == expected
    alone = ALIVE._replace(sleepers={AT + 4: 2})
    assert judge(None, AT + 4, WAIT_BITSET, 0, waited_for, alone) == expected
    six = {4: 6, 16: 6, 20: 6, 36: 3 << 3}  # waiters that ever were, of 64 bits, first
    assert judge("pthread_cond_wait", AT + 40, WAIT_BITSET, 0, big(six)) == Lock(
        "condition", AT, None, "3 waiters"
    )


def test_a_barrier() -> None:
    memory = words(AT, {0: 5, 4: 2, 8: 4})
    assert judge("pthread_barrier_wait", AT + 4, WAIT, 2, memory) == Lock(
        "barrier", AT, None, "3 of 4 have arrived"
    )
    assert judge("pthread_barrier_wait", AT + 4, WAIT, 2, words(AT, {})) is None


def joined(tid: int, first: int = AT + 16, last: int = AT + 16, to_lock: int = -32) -> Memory:
    """What glibc keeps behind a tid."""
    return BytesMemory(AT, struct.pack("<IIQQq", tid, 0, last, first, to_lock))


def test_a_thread_that_is_joined() -> None:
    expected = Lock("thread", AT, 7)
    assert judge(None, AT, WAIT_BITSET, 7, joined(7)) == expected
    assert judge(None, AT, WAIT_BITSET, 7, joined(7, 0x5018, 0x6018)) == expected, "it holds robust mutexes"
    assert judge(None, AT, WAIT_BITSET, 99, joined(99)) is None, "no such thread"
    assert judge(None, AT, WAIT_BITSET, 7, joined(0)) is None, "it has ended since"
    for other in (joined(7, last=0x6018), joined(7, first=0x5018), joined(7, 0, 0), joined(7, to_lock=0)):
        assert judge(None, AT, WAIT_BITSET, 7, other) is None, "no struct pthread"
    assert judge(None, AT, WAIT_BITSET, 7, words(AT, {0: 7})) is None


def test_what_is_no_futex() -> None:
    assert lock_of(thread("read", "|", "main"), ALIVE) is None
    assert judge("pthread_mutex_lock", AT, 1, 2, mutex()) is None, "it wakes"
