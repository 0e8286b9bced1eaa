"""Recognizes the glibc lock that a thread sleeps on, and its owner, from the memory around the futex word.

sfsample accepts a lock only if three facts agree: the function on the stack, the futex operation, and the
words of the structure in memory.  A wrong owner is worse than no owner.
Invariant: each disagreement gives None (tests/waiting/test_glibc_locks.py).

A number in parentheses after a field is its offset in bytes.  All tids belong to the target's pid namespace.
Source: glibc's sysdeps/nptl/bits/struct_mutex.h (unchanged since 2.3), struct_rwlock.h and
bits/thread-shared-types.h (since 2.25), nptl/internaltypes.h (semaphores since 2.21, barriers since 2.25),
nptl/descr.h (the tid that pthread_join waits for; after it, the list of robust mutexes).
"""

from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.core.quantities import counted
from sfsample.core.wait_kind import WaitKind
from sfsample.waiting.thread import WaitingThread

_COMMAND_MASK, _WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2 = 127, 0, 6, 9, 13  # FUTEX_CMD_MASK, FUTEX_WAIT ...
_OWNER_MASK, _WAITERS = 0x3FFFFFFF, 0x80000000  # FUTEX_TID_MASK, FUTEX_WAITERS
_PRIVATE = 128  # FUTEX_PRIVATE_FLAG
_GUARD_WAITED_FOR = 0x10100  # libstdc++'s guard of a static variable: pending_bit, waiting_bit
_CONTENDED = 2  # value of the futex word of a mutex with waiters
_ROBUST = 16  # PTHREAD_MUTEX_ROBUST_NORMAL_NP
_KIND_END = 0x200  # every __kind is smaller: the type, and bits for robust, inheriting, shared, elided
# -32: bytes from the list entry of a robust mutex to its futex word, see set_robust_list(2)
_FUTEX_OFFSET = (1 << 64) - 32
_NODE_BYTES = 1024  # bytes above sp within which musl has the futex word of a wait for a condition variable
_MAX_WAITERS = 1 << 20  # waiters; a larger count is not believed
_WRITE_PHASE, _READERS_SHIFT = 1, 3  # PTHREAD_RWLOCK_WRPHASE and _READER_SHIFT of a rwlock's __readers
_WRITER_WAITS = 6  # PTHREAD_RWLOCK_WRLOCKED and RWAITING, without WRPHASE: readers hold the lock

_MUTEX = ("pthread_mutex_lock", "pthread_mutex_cond_lock")
_TIMED_MUTEX = ("pthread_mutex_timedlock", "pthread_mutex_clocklock", "pthread_mutex_clocklock_common")
_CONDITION = ("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait")
_MUTEX_FUNCTIONS = {  # futex command -> functions that wait for a mutex; up to glibc 2.33, all use _WAIT
    _WAIT: {*_MUTEX, *_TIMED_MUTEX, *_CONDITION},
    _WAIT_BITSET: {*_TIMED_MUTEX},
}


class Lock(NamedTuple):
    """The lock that a thread waits for; `owner` is a tid in the target's pid namespace, None if unknown."""

    kind: WaitKind
    address: int
    owner: int | None
    note: str = ""


class _Futex(NamedTuple):
    """A futex word, and the thread that sleeps on it."""

    word: int  # address
    value: int  # value that the thread expects in the word
    memory: Memory  # memory around the word
    alive: Container[int]  # living threads, in the target's pid namespace
    tid: int  # sleeping thread, in the target's pid namespace

    def u32(self, address: int) -> int | None:
        """Return the 32-bit word at an address; None: the word was not copied."""
        data = self.memory.read(address, 4)
        return None if data is None else int.from_bytes(data, self.memory.byteorder)


def lock_of(thread: WaitingThread, alive: Container[int], sleepers: Mapping[int, int]) -> Lock | None:
    """Return the glibc lock that a thread sleeps on; None: no such lock, or the facts disagree.

    `alive` and `sleepers`: see `WaitContext`.
    """
    call = thread.call
    if call is None or call.name != "futex":
        return None
    word, operation, value, timeout = call.syscall.args[:4]
    command, value = operation & _COMMAND_MASK, value & 0xFFFFFFFF
    futex, functions = _Futex(word, value, thread.memory, alive, thread.ns_tid), set(thread.functions)
    # The owner of a lock that processes may share is perhaps a thread of another process.
    shared = futex if operation & _PRIVATE else futex._replace(alive=range(1, _OWNER_MASK + 1))
    if command in (_LOCK_PI, _LOCK_PI2):
        return _priority_inheriting(futex)
    if value & _WAITERS and command in (_WAIT, _WAIT_BITSET):
        return _robust(shared) if thread.in_c_library else None
    if value == _CONTENDED and functions & _MUTEX_FUNCTIONS.get(command, set()):
        is_of_musl = not functions.isdisjoint(_CONDITION) and 0 < word - call.syscall.sp < _NODE_BYTES
        return None if is_of_musl else _mutex(shared)
    near = {*thread.functions[:2]}  # innermost functions: the function that runs once may itself wait
    if near & {"pthread_once", "pthread_once_slow"} or ("syscall" in near and value == _GUARD_WAITED_FOR):
        return Lock(WaitKind.ONCE, word, None)
    for names, lock in _LOCKS:
        if functions & set(names):
            return lock(shared)
    if command not in (_WAIT, _WAIT_BITSET):
        return None
    join = _join(futex)
    if join or not thread.in_c_library:
        return join
    semaphore = _semaphore(futex, sleepers.get(word, 0))
    return semaphore or (_unnamed_mutex(futex) if timeout else None)


def _mutex(futex: _Futex) -> Lock | None:
    """Check __lock (0) and __owner (8).

    Another thread may take the mutex before the woken thread runs.  Then __lock is 1.
    """
    address, state, owner = futex.word, futex.u32(futex.word), futex.u32(futex.word + 8)
    if state is None or state > _CONTENDED or owner is None:
        return None
    if state == 0 or owner == 0:
        return Lock(WaitKind.MUTEX, address, None, "between two owners")
    note = "" if owner in futex.alive else "which has ended without unlocking it"
    return Lock(WaitKind.MUTEX, address, owner, note)


def _priority_inheriting(futex: _Futex) -> Lock | None:
    """Check a priority-inheriting mutex, whose futex word has the tid of the owner (futex(2)).

    The kernel writes the tid of the next owner before it wakes that thread.
    """
    owner = (futex.u32(futex.word) or 0) & _OWNER_MASK
    if owner == futex.tid:
        return Lock(WaitKind.MUTEX, futex.word, None, "which it has just got")
    return Lock(WaitKind.MUTEX, futex.word, owner) if owner in futex.alive else None


def _robust(futex: _Futex) -> Lock | None:
    """Check a robust mutex: futex word and __owner (8) have the same tid, and __kind (16) is robust."""
    word, owner = futex.word, futex.value & _OWNER_MASK
    is_held = futex.u32(word) == futex.value and futex.u32(word + 8) == owner and owner in futex.alive
    is_robust = (futex.u32(word + 16) or 0) & _ROBUST
    return Lock(WaitKind.MUTEX, word, owner) if is_held and is_robust else None


def _unnamed_mutex(futex: _Futex) -> Lock | None:
    """Check a mutex if no frame names the function that waits, because the C library has no symbols.

    The owner must be alive, __nusers (12) not 0, and __kind (16) valid.
    """
    users, kind = futex.u32(futex.word + 12), futex.u32(futex.word + 16)
    is_contended = futex.value == futex.u32(futex.word) == _CONTENDED
    if not is_contended or not users or kind is None or kind >= _KIND_END:
        return None
    lock = _mutex(futex)
    return lock if lock is not None and lock.owner in futex.alive else None


def _condition(futex: _Futex) -> Lock | None:
    """Check __wrefs, which is 8 times the number of waiters, and lies before both futex words (__g_signals).

    The waiters form two groups.  __g_refs has 2 times the number of waiters of each group.  glibc 2.41, and
    older versions with fixes from 2.41, have no __g_refs, so the structure is 8 bytes shorter.
    """
    signals = futex.word & -8
    waiters = (futex.u32(signals - 4) or 0) >> 3
    if not 0 < waiters < _MAX_WAITERS:
        return None
    in_group = (futex.u32(futex.word - 24) or 0) >> 1
    if _counts_waiters(signals - 40, futex.memory) and 0 < in_group <= waiters:
        address = signals - 40
    elif _counts_waiters(signals - 32, futex.memory):
        address = signals - 32
    else:
        return None
    return Lock(WaitKind.CONDITION, address, None, counted(waiters, "waiter"))


def _counts_waiters(address: int, memory: Memory) -> bool:
    """Return True if __wseq (0), which counts all waiters since the start, is at least __g1_start (8)."""
    sequence, start = memory.word(address), memory.word(address + 8)
    return sequence is not None and start is not None and 0 < sequence >> 1 >= start >> 1


def _read_lock(futex: _Futex) -> Lock | None:
    """Check a thread that waits to read.

    If a writer holds the lock, the thread sleeps on __wrphase_futex (8).  If readers hold the lock and a
    writer waits, the thread sleeps on __readers (0), and the writer goes first.
    """
    word, value = futex.word, futex.value
    writer = _writer(futex, word - 8)
    if writer is not None:
        return Lock(WaitKind.READ_LOCK, word - 8, writer, "for writing")
    readers = value >> _READERS_SHIFT
    if futex.u32(word) != value or value & 7 != _WRITER_WAITS or not 0 < readers < _MAX_WAITERS:
        return None
    return Lock(WaitKind.READ_LOCK, word, None, f"{_held_by(readers)}; a waiting writer goes first")


def _write_lock(futex: _Futex) -> Lock | None:
    """Check a thread that waits to write, and sleeps on __writers_futex (12) or __wrphase_futex (8)."""
    address = futex.word - (12 if futex.word % 8 else 8)
    writer = _writer(futex, address)
    if writer is not None:
        return Lock(WaitKind.WRITE_LOCK, address, writer, "for writing")
    readers = (futex.u32(address) or 0) >> _READERS_SHIFT
    return Lock(WaitKind.WRITE_LOCK, address, None, _held_by(readers)) if 0 < readers < _MAX_WAITERS else None


def _writer(futex: _Futex, address: int) -> int | None:
    """Return __cur_writer (24), the tid of the writer that holds a lock; None: no writer holds the lock."""
    state, writer = futex.u32(address), futex.u32(address + 24)
    return writer if state is not None and state & _WRITE_PHASE and writer in futex.alive else None


def _held_by(readers: int) -> str:
    return f"held by {counted(readers, 'reader')}, glibc does not note which"


def _semaphore(futex: _Futex, sleepers: int | None = None) -> Lock | None:
    """Check both halves of a 64-bit word: the value, on which threads sleep, and the number of waiters.

    In a C library without symbols, the only evidence is that the number of waiters equals `sleepers`, the
    number of threads seen asleep on the value.  `sleepers` None: a function on the stack is the evidence.
    """
    waiters_at = futex.word + (4 if futex.memory.byteorder == "little" else -4)
    value, waiters = futex.u32(futex.word), futex.u32(waiters_at)
    if futex.value or value != 0 or waiters is None or not 0 < waiters < _MAX_WAITERS:
        return None
    note = f"value 0, {counted(waiters, 'waiter')}"
    is_sure = sleepers is None or waiters == sleepers
    return Lock(WaitKind.SEMAPHORE, min(futex.word, waiters_at), None, note) if is_sure else None


def _barrier(futex: _Futex) -> Lock | None:
    """Check `in` (0), `current_round` (4) and `count` (8); threads sleep on `current_round`."""
    address = futex.word - 4
    arrived, finished, count = (futex.u32(address + at) for at in (0, 4, 8))
    if arrived is None or finished is None or count is None or not 0 < arrived - finished < count:
        return None
    return Lock(WaitKind.BARRIER, address, None, f"{arrived - finished} of {count} have arrived")


def _join(futex: _Futex) -> Lock | None:
    """Check the tid in struct pthread; the kernel clears the tid when the thread ends.

    After the tid comes the thread's list of robust mutexes: the last entry (8), the first entry (16), and the
    offset that glibc gives to set_robust_list(2) (24).  In an empty list, both entries point to the list.
    """
    word, value = futex.word, futex.value
    last, first, futex_offset = (futex.memory.word(word + at) for at in (8, 16, 24))
    if futex.u32(word) != value or value not in futex.alive or futex_offset != _FUTEX_OFFSET:
        return None
    is_list = (first == word + 16) == (last == word + 16)
    return Lock(WaitKind.THREAD, word, value) if first and last and is_list else None


_LOCKS: tuple[tuple[tuple[str, ...], Callable[[_Futex], Lock | None]], ...] = (
    (_CONDITION, _condition),
    (("pthread_rwlock_rdlock", "pthread_rwlock_timedrdlock", "pthread_rwlock_clockrdlock"), _read_lock),
    (("pthread_rwlock_wrlock", "pthread_rwlock_timedwrlock", "pthread_rwlock_clockwrlock"), _write_lock),
    (("sem_wait", "sem_timedwait", "sem_clockwait", "new_sem_wait", "new_sem_wait_slow64"), _semaphore),
    (("pthread_barrier_wait",), _barrier),
)
