"""Defines the kinds of waits (in `dump --json`), and their classes (in the label `wait` of profiles)."""

from enum import StrEnum


class WaitKind(StrEnum):
    """The kind of object or event for which a thread waits."""

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


class WaitClass(StrEnum):
    """The class of a wait.  Scripts rely on these classes, so no class is added."""

    LOCK = "lock"
    GIL = "gil"
    CONDITION = "condition"  # another thread has to signal, to end or to arrive
    NETWORK = "network"
    PIPE = "pipe"
    DISK = "disk"
    SLEEP = "sleep"
    CHILD = "child"
    SIGNAL = "signal"
    CPU = "cpu"  # the thread is runnable, and waits for a CPU
    EVENT = "event"  # events of several descriptors, a timer, an eventfd
    OTHER = "other"


_KINDS = {
    WaitClass.LOCK: "mutex, read lock, write lock, once, lock, rlock, file lock, database lock",
    WaitClass.GIL: "gil",
    WaitClass.CONDITION: "condition, semaphore, barrier, thread, event, future, queue",
    WaitClass.NETWORK: "connect, accept, name resolution",
    WaitClass.PIPE: "empty pipe, full pipe, open fifo",
    WaitClass.SLEEP: "sleep",
    WaitClass.CHILD: "child, vfork",
    WaitClass.SIGNAL: "signal",
}
# class of a wait by its kind; for a kind that is not listed, the descriptor decides
CLASS_OF = {WaitKind(kind): name for name, kinds in _KINDS.items() for kind in kinds.split(", ")}
