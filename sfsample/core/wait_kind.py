"""The kinds of waits: what a thread may wait for.  Each value is what `dump --json` calls it."""

from enum import StrEnum


class WaitKind(StrEnum):
    """What a thread waits for."""

    # locks and other structures of the C library
    MUTEX = "mutex"
    READ_LOCK = "read lock"
    WRITE_LOCK = "write lock"
    CONDITION = "condition"
    SEMAPHORE = "semaphore"
    BARRIER = "barrier"
    ONCE = "once"  # an initialisation that another thread has begun
    THREAD = "thread"  # the end of one
    FUTEX = "futex"  # of no structure that is known
    # Python's objects
    GIL = "gil"
    LOCK = "lock"
    RLOCK = "rlock"
    EVENT = "event"
    FUTURE = "future"
    QUEUE = "queue"
    # descriptors and files
    EMPTY_PIPE = "empty pipe"
    FULL_PIPE = "full pipe"
    READ = "read"
    WRITE = "write"
    CONNECT = "connect"
    ACCEPT = "accept"
    EVENTS = "events"  # of descriptors
    FILE_LOCK = "file lock"
    NAME_RESOLUTION = "name resolution"
    DATABASE_LOCK = "database lock"
    # time, other processes, the kernel
    SLEEP = "sleep"
    SIGNAL = "signal"
    CHILD = "child"  # the end of one
    VFORK = "vfork"  # an exec or the end of the child
    STOPPED = "stopped"  # by a signal, a tracer or a frozen cgroup
    KERNEL = "kernel"  # uninterruptibly
