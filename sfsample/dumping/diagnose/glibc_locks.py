"""Whose lock it is: glibc's locks, read from the memory around the futex word that a thread sleeps on.

Law: believed only if three witnesses agree: the function on the stack, the futex operation, and the words of
the structure itself.  Otherwise None: a wrong owner is worse than none.

Source: glibc's sysdeps/nptl/bits/struct_mutex.h (owner at 8, unchanged since 2.3), struct_rwlock.h and
bits/thread-shared-types.h (since 2.25), nptl/internaltypes.h (semaphores since 2.21, barriers since 2.25),
nptl/descr.h (the tid that pthread_join waits for, and the list of robust mutexes behind it).  Threads are
known by the ids in their own pid namespace.
"""

from collections.abc import Container, Iterable, Mapping
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.errors import FormatError
from sfsample.modules.module import Module

_COMMAND, _WAIT, _LOCK_PI, _WAIT_BITSET, _LOCK_PI2 = 127, 0, 6, 9, 13
_TID_MASK = 0x3FFFFFFF
_CONTENDED, _WAITERS, _ROBUST = 2, 0x80000000, 16  # FUTEX_WAITERS, PTHREAD_MUTEX_ROBUST_NORMAL_NP
_TO_LOCK = (1 << 64) - 32  # from a robust mutex's place in its owner's list to the futex: set_robust_list(2)
_MANY = 1 << 20
_KINDS = 0x200  # types, and bits for robust, inheriting, shared and elided ones
_WRITE_PHASE, _READERS = 1, 3  # bit, and shift, of a rwlock's __readers
_WRITER_WAITS = 6  # PTHREAD_RWLOCK_WRLOCKED and RWAITING, in a readers' phase

_MUTEX = ("pthread_mutex_lock", "pthread_mutex_cond_lock")
_TIMED_MUTEX = ("pthread_mutex_timedlock", "pthread_mutex_clocklock", "pthread_mutex_clocklock_common")
_COND = ("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait")
_READ = ("pthread_rwlock_rdlock", "pthread_rwlock_timedrdlock", "pthread_rwlock_clockrdlock")
_WRITE = ("pthread_rwlock_wrlock", "pthread_rwlock_timedwrlock", "pthread_rwlock_clockwrlock")
_SEMAPHORE = ("sem_wait", "sem_timedwait", "sem_clockwait", "new_sem_wait", "new_sem_wait_slow64")
_BARRIER = ("pthread_barrier_wait",)
_ONCE = ("pthread_once", "cxa_guard_acquire")


class Lock(NamedTuple):
    """What a thread waits for.  `owner` is a tid (of its pid namespace), None when there is none to be known.

    `kind`: mutex, read lock, write lock, condition, thread, semaphore, barrier, once.
    """

    kind: str
    address: int
    owner: int | None
    note: str = ""


class Others(NamedTuple):
    """What has to be known of the other threads: `alive` ids, and how many sleep on each futex word."""

    alive: Container[int]
    sleepers: Mapping[int, int]
    since_2_25: bool  # the process has a glibc with today's structures


def lock_of(thread: NamedThread, others: Others) -> Lock | None:
    """Return the lock that a thread sleeps on, if it is one of glibc's and all agrees."""
    alive = others.alive
    call, memory = thread.dump.call, thread.dump.memory
    if call is None or call.name != "futex":
        return None
    word, operation, value = call.syscall.args[:3]
    command, value = operation & _COMMAND, value & 0xFFFFFFFF
    functions = set(thread.library_functions())
    if command in (_LOCK_PI, _LOCK_PI2):
        return _priority_inheriting(word, memory, alive)
    if value & _WAITERS and command in (_WAIT, _WAIT_BITSET):
        return _robust(thread, word, value, alive)
    if value == _CONTENDED and functions & _waiting_for_mutex(command):
        return _mutex(word, memory, alive)
    if functions & set(_ONCE):
        return Lock("once", word, None)
    if others.since_2_25 and functions & {*_COND, *_READ, *_WRITE, *_SEMAPHORE, *_BARRIER}:
        return _newer(functions, word, value, memory, alive)
    if command not in (_WAIT, _WAIT_BITSET):
        return None
    return (_join(word, value, memory, alive) or _unnamed_semaphore(thread, value, others)
            or _unnamed_mutex(thread, value, alive))  # fmt: skip


def _waiting_for_mutex(command: int) -> set[str]:
    """Return the functions that wait for a mutex in this way; before 2.34 time-outs were lengths, too."""
    if command == _WAIT:
        return {*_MUTEX, *_TIMED_MUTEX, *_COND}
    return set(_TIMED_MUTEX) if command == _WAIT_BITSET else set()


def _newer(functions: set[str], word: int, value: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Judge the structures that came with 2.25."""
    if functions & set(_COND):
        return _condition(word, memory)
    if functions & set(_READ):
        return _reader(word, value, memory, alive)
    if functions & set(_WRITE):
        return _writer(word, memory, alive)
    return _semaphore(word, memory) if functions & set(_SEMAPHORE) else _barrier(word - 4, memory)


def _mutex(address: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Judge __lock (0), __owner (8)."""
    lock, owner = _u32(memory, address), _u32(memory, address + 8)
    if lock != _CONTENDED or owner is None:
        return None  # released since
    if owner == 0:
        return Lock("mutex", address, None, "changing hands")
    if owner not in alive:
        return Lock("mutex", address, owner, "which has ended without unlocking it")
    return Lock("mutex", address, owner)


def _priority_inheriting(address: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Judge the kernel's own protocol: the word holds the owner's tid."""
    owner = (_u32(memory, address) or 0) & _TID_MASK
    return Lock("mutex", address, owner) if owner in alive else None


def _robust(thread: NamedThread, word: int, value: int, alive: Container[int]) -> Lock | None:
    """Judge a robust mutex: its word has the owner's tid, too, and its kind (16) says what it is."""
    memory, owner = thread.dump.memory, value & _TID_MASK
    if _u32(memory, word) != value or _u32(memory, word + 8) != owner or owner not in alive:
        return None
    robust = (_u32(memory, word + 16) or 0) & _ROBUST and thread.in_c_library()
    return Lock("mutex", word, owner) if robust else None


def _condition(word: int, memory: Memory) -> Lock | None:
    """Judge the number of waiters, times eight, which is before the two futex words (__g_signals).

    Where the structure begins is a matter of the version: 2.41 (and later fixes of older ones) has no
    __g_refs, which counts the waiters of each of two groups, times two.
    """
    signals = word & -8
    waiters = (_u32(memory, signals - 4) or 0) >> 3
    if not 0 < waiters < _MANY:
        return None
    in_group = (_u32(memory, word - 24) or 0) >> 1
    if _counts_waiters(signals - 40, memory) and 0 < in_group <= waiters:
        address = signals - 40
    elif _counts_waiters(signals - 32, memory):
        address = signals - 32
    else:
        return None
    return Lock("condition", address, None, f"{waiters} waiter{'s' * (waiters != 1)}")


def _counts_waiters(address: int, memory: Memory) -> bool:
    """Whether __wseq (0), of all waiters that ever were, is not below __g1_start (8)."""
    ever, start = memory.word(address), memory.word(address + 8)
    return ever is not None and start is not None and 0 < ever >> 1 >= start >> 1


def _reader(word: int, value: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Judge a reader, which sleeps on __wrphase_futex (8) while a writer has the lock.

    It sleeps on __readers (0) while readers have it and a writer, which goes first, waits.
    """
    writer = _writing(word - 8, memory, alive)
    if writer is not None:
        return Lock("read lock", word - 8, writer, "for writing")
    readers = value >> _READERS
    if _u32(memory, word) != value or value & 7 != _WRITER_WAITS or not 0 < readers < _MANY:
        return None
    return Lock("read lock", word, None, f"{_held_by(readers)}; a writer waits, and goes before it")


def _writer(word: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Judge a writer: asleep on __writers_futex (12) behind a writer, on __wrphase_futex behind readers."""
    address = word - (12 if word % 8 else 8)
    writer = _writing(address, memory, alive)
    if writer is not None:
        return Lock("write lock", address, writer, "for writing")
    readers = (_u32(memory, address) or 0) >> _READERS
    return Lock("write lock", address, None, _held_by(readers)) if 0 < readers < _MANY else None


def _writing(address: int, memory: Memory, alive: Container[int]) -> int | None:
    """Return who has a lock for writing: __readers (0) says that somebody has, __cur_writer (24) who."""
    state, writer = _u32(memory, address), _u32(memory, address + 24)
    return writer if state is not None and state & _WRITE_PHASE and writer in alive else None


def _held_by(readers: int) -> str:
    return f"held by {readers} reader{'s' * (readers != 1)}, glibc does not note which"


def _semaphore(word: int, memory: Memory) -> Lock | None:
    """Judge the value, on which it sleeps, and the number of waiters: the low and the high half of a word."""
    counter = _counter(word, memory)
    value, waiters = _u32(memory, word), _u32(memory, counter)
    if value != 0 or waiters is None or not 0 < waiters < _MANY:
        return None
    note = f"value 0, {waiters} waiter{'s' * (waiters != 1)}"
    return Lock("semaphore", min(word, counter), None, note)


def _counter(value_at: int, memory: Memory) -> int:
    """Return where a semaphore counts its waiters."""
    return value_at + (4 if memory.byteorder == "little" else -4)


def _unnamed_semaphore(thread: NamedThread, value: int, others: Others) -> Lock | None:
    """Judge a wait in a C library without symbols, where sem_wait(3) has left no frame of its own.

    It has to count as many waiters as there are sleepers, and nothing but the C library may be between.
    """
    word = thread.dump.syscall.args[0] if thread.dump.syscall else 0
    lock = _semaphore(word, thread.dump.memory) if others.since_2_25 and value == 0 else None
    counted = _u32(thread.dump.memory, _counter(word, thread.dump.memory)) == others.sleepers.get(word)
    return lock if counted and thread.in_c_library() else None


def _unnamed_mutex(thread: NamedThread, value: int, alive: Container[int]) -> Lock | None:
    """Judge a wait in a C library without symbols, where pthread_mutex_timedlock(3) has left no frame.

    It has a time-out, the owner lives, the mutex has users (12), and is of a kind (16) that there is.
    """
    word, timeout = thread.dump.syscall.args[0:4:3] if thread.dump.syscall else (0, 0)
    memory = thread.dump.memory
    users, kind = _u32(memory, word + 12), _u32(memory, word + 16)
    if value != _CONTENDED or not timeout or not users or kind is None or kind >= _KINDS:
        return None
    lock = _mutex(word, memory, alive) if thread.in_c_library() else None
    return lock if lock is not None and lock.owner in alive else None


def _barrier(address: int, memory: Memory) -> Lock | None:
    """Judge in (0), current_round (4), count (8)."""
    arrived, done, count = (_u32(memory, address + at) for at in (0, 4, 8))
    if arrived is None or done is None or count is None or not 0 < arrived - done < count:
        return None
    return Lock("barrier", address, None, f"{arrived - done} of {count} have arrived")


def _join(word: int, value: int, memory: Memory, alive: Container[int]) -> Lock | None:
    """Judge the tid in struct pthread; the kernel clears it in the end.

    Behind it are the last (8) and the first (16) of the robust mutexes that the thread holds, which are the
    list itself where it holds none, and what the kernel is told of them (24).
    """
    last, first, to_lock = (memory.word(word + at) for at in (8, 16, 24))
    if _u32(memory, word) != value or value not in alive or to_lock != _TO_LOCK:
        return None
    is_list = (first == word + 16) == (last == word + 16)
    return Lock("thread", word, value) if first and last and is_list else None


def _u32(memory: Memory, address: int) -> int | None:
    data = memory.read(address, 4)
    return None if data is None else int.from_bytes(data, memory.byteorder)


def is_since_2_25(modules: Iterable[Module]) -> bool:
    """Whether one of them is a glibc that has today's structures: it says which versions it provides."""
    return any(b"\0GLIBC_2.25\0" in _names(module) for module in modules)


def _names(module: Module) -> bytes:
    if not module.path.rpartition("/")[2].startswith(("libc.so", "libc-2.", "libpthread")):
        return b""
    try:
        section = module.image.section(".dynstr")
        return bytes(module.image.contents(section)) if section else b""
    except FormatError:
        return b""
