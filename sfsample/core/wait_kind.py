"""Defines the kinds of waits.  The values are the words of `dump --json`."""

from enum import StrEnum


class WaitKind(StrEnum):
    """The thing for which a thread waits."""

    # locks and other structures of the C library
    MUTEX = "mutex"
    READ_LOCK = "read lock"
    WRITE_LOCK = "write lock"
    CONDITION = "condition"
    SEMAPHORE = "semaphore"
    BARRIER = "barrier"
    ONCE = "once"  # initialisation that another thread has begun
    THREAD = "thread"  # end of a thread
    FUTEX = "futex"  # futex of an unknown structure
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
    OPEN_FIFO = "open fifo"  # open(2) of a FIFO until the other end is opened
    READ = "read"
    WRITE = "write"
    CONNECT = "connect"
    ACCEPT = "accept"
    EVENTS = "events"  # events of descriptors
    FILE_LOCK = "file lock"
    NAME_RESOLUTION = "name resolution"
    DATABASE_LOCK = "database lock"
    # time, other processes, the kernel
    SLEEP = "sleep"
    SIGNAL = "signal"
    CHILD = "child"  # end of a child
    VFORK = "vfork"  # exec or end of the child
    STOPPED = "stopped"  # stop by a signal, a tracer or a frozen cgroup
    KERNEL = "kernel"  # uninterruptible sleep
