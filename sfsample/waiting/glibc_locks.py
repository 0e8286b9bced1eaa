"""Recognizes the glibc lock that a thread sleeps on, and its owner, from the memory around the futex word.

A lock is believed only if three facts agree: the function on the stack, the futex operation, and the words of
the structure in memory.  Otherwise the answer is None: a wrong owner is worse than none.
Invariant: each disagreement gives None (tests/waiting/test_glibc_locks.py).

Source: glibc's sysdeps/nptl/bits/struct_mutex.h (owner at 8, unchanged since 2.3), struct_rwlock.h and
bits/thread-shared-types.h (since 2.25), nptl/internaltypes.h (semaphores since 2.21, barriers since 2.25),
nptl/descr.h (the tid that pthread_join waits for, and the list of robust mutexes behind it).  Tids are those
of the target's own pid namespace.
"""

from collections.abc import Container
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.core.wait_kind import WaitKind
from sfsample.waiting.thread import OtherThreads, WaitingThread

_COMMAND_MASK, _WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2 = 127, 0, 6, 9, 13  # FUTEX_CMD_MASK, FUTEX_WAIT ...
_OWNER_MASK, _WAITERS = 0x3FFFFFFF, 0x80000000  # FUTEX_TID_MASK, FUTEX_WAITERS
_CONTENDED = 2  # value of a mutex word for which a thread waits
_ROBUST = 16  # PTHREAD_MUTEX_ROBUST_NORMAL_NP
_KIND_END = 0x200  # first value above a mutex's type and its bits for robust, inheriting, shared and elided
# -32: the distance from a mutex's list entry to its futex word, see set_robust_list(2)
_FUTEX_OFFSET = (1 << 64) - 32
_MAX_WAITERS = 1 << 20  # waiters; a larger count is not believed
_WRITE_PHASE, _READERS_SHIFT = 1, 3  # PTHREAD_RWLOCK_WRPHASE and _READER_SHIFT of a rwlock's __readers
_WRITER_WAITS = 6  # PTHREAD_RWLOCK_WRLOCKED and RWAITING, in a readers' phase

_MUTEX = ("pthread_mutex_lock", "pthread_mutex_cond_lock")
_TIMED_MUTEX = ("pthread_mutex_timedlock", "pthread_mutex_clocklock", "pthread_mutex_clocklock_common")
_CONDITION = ("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait")
_MUTEX_FUNCTIONS = {  # futex command -> functions that wait for a mutex; until glibc 2.33, all used _WAIT
    _WAIT: {*_MUTEX, *_TIMED_MUTEX, *_CONDITION},
    _WAIT_BITSET: {*_TIMED_MUTEX},
}
_READ_LOCK = ("pthread_rwlock_rdlock", "pthread_rwlock_timedrdlock", "pthread_rwlock_clockrdlock")
_WRITE_LOCK = ("pthread_rwlock_wrlock", "pthread_rwlock_timedwrlock", "pthread_rwlock_clockwrlock")
_SEMAPHORE = ("sem_wait", "sem_timedwait", "sem_clockwait", "new_sem_wait", "new_sem_wait_slow64")
_BARRIER = ("pthread_barrier_wait",)
_ONCE = ("pthread_once", "cxa_guard_acquire")


class Lock(NamedTuple):
    """The lock that a thread waits for; `owner` is a tid in the target's pid namespace, None if unknown."""

    kind: WaitKind
    address: int
    owner: int | None
    note: str = ""


def lock_of(thread: WaitingThread, others: OtherThreads) -> Lock | None:
    """Return the lock that a thread sleeps on; None if it is not glibc's, or if the facts disagree."""
    alive = others.tids
    call, memory = thread.call, thread.memory
    if call is None or call.name != "futex":
        return None
    word, operation, value, timeout = call.syscall.args[:4]
    command, value = operation & _COMMAND_MASK, value & 0xFFFFFFFF
    functions = set(thread.functions)
    if command in (_LOCK_PI, _LOCK_PI2):
        return _priority_inheriting(word, memory, alive)
    if value & _WAITERS and command in (_WAIT, _WAIT_BITSET):
        return _robust(thread, word, value, alive)
    if value == _CONTENDED and functions & _MUTEX_FUNCTIONS.get(command, set()):
        return _mutex(word, memory, alive)
    if functions & set(_ONCE):
        return Lock(WaitKind.ONCE, word, None)
    if functions & {*_CONDITION, *_READ_LOCK, *_WRITE_LOCK, *_SEMAPHORE, *_BARRIER}:
        return _by_function(functions, word, value, memory, alive)
    if command not in (_WAIT, _WAIT_BITSET):
        return None
    join = _join(word, value, memory, alive)
    if join or not thread.in_c_library:
        return join
    unnamed = _unnamed_semaphore(word, value, memory, others)
    return unnamed or _unnamed_mutex(word, value, timeout, memory, alive)


def _by_function(
    functions: set[str], word: int, value: int, memory: Memory, alive: Container[int]
) -> Lock | None:
    if functions & set(_CONDITION):
        return _condition(word, memory)
    if functions & set(_READ_LOCK):
        return _read_lock(word, value, memory, alive)
    if functions & set(_WRITE_LOCK):
        return _write_lock(word, memory, alive)
    return _semaphore(word, memory) if functions & set(_SEMAPHORE) else _barrier(word - 4, memory)


def _mutex(address: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Check __lock (0) and __owner (8)."""
    lock, owner = _u32(memory, address), _u32(memory, address + 8)
    if lock != _CONTENDED or owner is None:
        return None  # the mutex was released since the thread went to sleep
    if owner == 0:
        return Lock(WaitKind.MUTEX, address, None, "between two owners")
    if owner not in alive:
        return Lock(WaitKind.MUTEX, address, owner, "which has ended without unlocking it")
    return Lock(WaitKind.MUTEX, address, owner)


def _priority_inheriting(address: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Check the word of a priority-inheriting mutex, which has the owner's tid (the kernel's protocol)."""
    owner = (_u32(memory, address) or 0) & _OWNER_MASK
    return Lock(WaitKind.MUTEX, address, owner) if owner in alive else None


def _robust(thread: WaitingThread, word: int, value: int, alive: Container[int]) -> Lock | None:
    """Check a robust mutex: its word has the owner's tid too, and its __kind (16) is robust."""
    memory, owner = thread.memory, value & _OWNER_MASK
    if _u32(memory, word) != value or _u32(memory, word + 8) != owner or owner not in alive:
        return None
    robust = (_u32(memory, word + 16) or 0) & _ROBUST and thread.in_c_library
    return Lock(WaitKind.MUTEX, word, owner) if robust else None


def _unnamed_mutex(word: int, value: int, timeout: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Check a mutex in a C library without symbols, where pthread_mutex_timedlock(3) leaves no named frame.

    The call has a time-out, the owner is alive, the mutex has users (12), and its __kind (16) is valid.
    """
    users, kind = _u32(memory, word + 12), _u32(memory, word + 16)
    if value != _CONTENDED or not timeout or not users or kind is None or kind >= _KIND_END:
        return None
    lock = _mutex(word, memory, alive)
    return lock if lock is not None and lock.owner in alive else None


def _condition(word: int, memory: Memory) -> Lock | None:
    """Check the number of waiters, times eight, which lies before the two futex words (__g_signals).

    The start of the structure depends on the version: 2.41, and older versions with later fixes, have no
    __g_refs, which counts the waiters of each of two groups, times two.
    """
    signals = word & -8
    waiters = (_u32(memory, signals - 4) or 0) >> 3
    if not 0 < waiters < _MAX_WAITERS:
        return None
    in_group = (_u32(memory, word - 24) or 0) >> 1
    if _counts_waiters(signals - 40, memory) and 0 < in_group <= waiters:
        address = signals - 40
    elif _counts_waiters(signals - 32, memory):
        address = signals - 32
    else:
        return None
    return Lock(WaitKind.CONDITION, address, None, f"{waiters} waiter{'s' * (waiters != 1)}")


def _counts_waiters(address: int, memory: Memory) -> bool:
    """Return True if __wseq (0), the count of all waiters so far, is at least __g1_start (8)."""
    sequence, start = memory.word(address), memory.word(address + 8)
    return sequence is not None and start is not None and 0 < sequence >> 1 >= start >> 1


def _read_lock(word: int, value: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Check a reader.  While a writer holds the lock, it sleeps on __wrphase_futex (8).

    While readers hold the lock and a writer waits, which goes first, it sleeps on __readers (0).
    """
    writer = _writer(word - 8, memory, alive)
    if writer is not None:
        return Lock(WaitKind.READ_LOCK, word - 8, writer, "for writing")
    readers = value >> _READERS_SHIFT
    if _u32(memory, word) != value or value & 7 != _WRITER_WAITS or not 0 < readers < _MAX_WAITERS:
        return None
    return Lock(WaitKind.READ_LOCK, word, None, f"{_held_by(readers)}; a writer waits, and goes before it")


def _write_lock(word: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Check a writer: it sleeps on __writers_futex (12) behind a writer, else on __wrphase_futex (8)."""
    address = word - (12 if word % 8 else 8)
    writer = _writer(address, memory, alive)
    if writer is not None:
        return Lock(WaitKind.WRITE_LOCK, address, writer, "for writing")
    readers = (_u32(memory, address) or 0) >> _READERS_SHIFT
    return Lock(WaitKind.WRITE_LOCK, address, None, _held_by(readers)) if 0 < readers < _MAX_WAITERS else None


def _writer(address: int, memory: Memory, alive: Container[int]) -> int | None:
    """Return the tid of the writer that holds a lock: __cur_writer (24), if __readers (0) states a writer."""
    state, writer = _u32(memory, address), _u32(memory, address + 24)
    return writer if state is not None and state & _WRITE_PHASE and writer in alive else None


def _held_by(readers: int) -> str:
    return f"held by {readers} reader{'s' * (readers != 1)}, glibc does not note which"


def _semaphore(word: int, memory: Memory) -> Lock | None:
    """Check the value, on which threads sleep, and the number of waiters: the halves of a 64-bit word."""
    waiters_at = _semaphore_waiters_at(word, memory)
    value, waiters = _u32(memory, word), _u32(memory, waiters_at)
    if value != 0 or waiters is None or not 0 < waiters < _MAX_WAITERS:
        return None
    note = f"value 0, {waiters} waiter{'s' * (waiters != 1)}"
    return Lock(WaitKind.SEMAPHORE, min(word, waiters_at), None, note)


def _semaphore_waiters_at(value_at: int, memory: Memory) -> int:
    return value_at + (4 if memory.byteorder == "little" else -4)


def _unnamed_semaphore(word: int, value: int, memory: Memory, others: OtherThreads) -> Lock | None:
    """Check a semaphore in a C library without symbols: as many threads sleep on it as it has waiters."""
    lock = _semaphore(word, memory) if value == 0 else None
    is_counted = _u32(memory, _semaphore_waiters_at(word, memory)) == others.sleepers.get(word)
    return lock if is_counted else None


def _barrier(address: int, memory: Memory) -> Lock | None:
    """Check in (0), current_round (4), count (8)."""
    arrived, finished, count = (_u32(memory, address + at) for at in (0, 4, 8))
    if arrived is None or finished is None or count is None or not 0 < arrived - finished < count:
        return None
    return Lock(WaitKind.BARRIER, address, None, f"{arrived - finished} of {count} have arrived")


def _join(word: int, value: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Check the tid in struct pthread, which the kernel clears when the thread ends.

    The list of robust mutexes that the thread holds follows: the last one (8), the first one (16), and the
    offset that glibc gives to set_robust_list(2) (24).  If the thread holds none, both point to the list.
    """
    last, first, futex_offset = (memory.word(word + at) for at in (8, 16, 24))
    if _u32(memory, word) != value or value not in alive or futex_offset != _FUTEX_OFFSET:
        return None
    is_list = (first == word + 16) == (last == word + 16)
    return Lock(WaitKind.THREAD, word, value) if first and last and is_list else None


def _u32(memory: Memory, address: int) -> int | None:
    data = memory.read(address, 4)
    return None if data is None else int.from_bytes(data, memory.byteorder)
