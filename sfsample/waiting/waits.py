"""Finds the wait of a thread: for a lock, a time, a child process, I/O, the end of a stop, or the kernel.

The evidence is the kernel's report, or the structure in memory that the thread sleeps on.  If the thread or
process that has to act is unknown, the wait does not name it.  Processes at the other end of a pipe or socket
are known if the thread waits for one descriptor, and if sfsample may read these processes.  The most specific
answer counts; `wording` makes a sentence of the answer.
"""

import os
import re
from collections.abc import Mapping
from itertools import islice
from signal import Signals
from typing import NamedTuple

from sfsample.core.wait_kind import WaitKind
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import (
    FILE_LOCK_CALLS,
    FORK_CALLS,
    SIGNAL_CALLS,
    WAIT_CALLS,
    DecodedSyscall,
)
from sfsample.waiting.glibc_locks import lock_of
from sfsample.waiting.python_waits import thread_to_act
from sfsample.waiting.thread import WaitContext, WaitingThread, gil_state, sleeps_on_gil

_ENDLESS_S = 365 * 86400.0  # seconds; a longer time-out counts as no time-out
_SLEEP_CALLS = ("nanosleep", "clock_nanosleep")
# Kernel functions in which threads of a frozen cgroup sleep.  The compiler inlines do_freezer_trap into
# get_signal.  A thread that sleeps in get_signal for another reason has state T or t.
_FREEZER_FUNCTIONS = ("__refrigerator", "do_freezer_trap", "get_signal")
_LOCK_TEXTS = {WaitKind.MUTEX: "mutex {}", WaitKind.READ_LOCK: "the read lock of rwlock {}",
               WaitKind.WRITE_LOCK: "the write lock of rwlock {}",
               WaitKind.CONDITION: "a signal on condition variable {}",
               WaitKind.SEMAPHORE: "semaphore {}", WaitKind.BARRIER: "the other threads at barrier {}",
               WaitKind.ONCE: "an initialisation that another thread has begun"}  # fmt: skip
_MAX_CHILDREN_NAMED = 3
_READ_CALLS = ("read", "readv", "pread64", "recvfrom", "recvmsg", "recvmmsg")
_WRITE_CALLS = ("write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice")
_OPEN_CALLS = ("open", "openat", "openat2")
_FIFO_FUNCTIONS = ("wait_for_partner", "fifo_open")  # kernel functions; the compiler may inline the first
_ACCEPT_CALLS = ("accept", "accept4")
_EVENT_CALLS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6")
IN_PIPE = re.compile("pipe_(read|write|wait)")  # kernel functions, also for a FIFO (fs/pipe.c)
_RESOLVER_FUNCTIONS = ("res_nsend", "res_context_send", "res_nquery", "res_query", "res_nsearch",
                       "res_search", "libc_res_nsend", "getaddrinfo", "gethostbyname_r",
                       "gethostbyname2_r", "gethostbyaddr_r")  # fmt: skip


class Wait(NamedTuple):
    """The wait of a thread, until thread `tid` of its process or one of the processes `pids` acts."""

    kind: WaitKind
    what: str  # object of the sentence: "mutex 0x1"
    tid: int | None = None
    pids: tuple[int, ...] = ()
    note: str = ""
    is_usual: bool = False  # True: threads of healthy programs wait like this
    verb: str = "waits for"
    lasting: str = "has waited {time} for"  # verb with the length of the wait
    timed: bool = False  # the wait ends after a time-out
    address: int = 0  # address of the lock in memory; 0: unknown
    own_end: bool = False  # the thread's process also has the other end of the pipe or socket open

    @property
    def process(self) -> int | None:
        """The process that has to act; None: unknown, or several processes may act."""
        is_known = len(self.pids) == 1 and self.kind is not WaitKind.SIGNAL  # any process may send a signal
        return self.pids[0] if is_known else None


def wait_of(thread: WaitingThread, context: WaitContext) -> Wait | None:
    """Return the wait of a thread; None if the thread runs, or if the wait is unknown."""
    state, call = thread.state, thread.call
    if state in ("T", "t"):
        return _stopped(state, context)
    if thread.wchan in _FREEZER_FUNCTIONS:
        return Wait(
            WaitKind.STOPPED, "its cgroup to be thawed", verb="is frozen, and waits for",
            lasting="has been frozen for {time}, and waits for")  # fmt: skip
    if state == "R" or call is None:
        return _uninterruptible(thread) if state == "D" else None
    wait = _by_title(context) or _by_call(thread, call, context) or _uninterruptible(thread)
    limits = (call.timeout_s, call.left_s)
    timed = any(limit is not None and limit < _ENDLESS_S for limit in limits)
    return wait and wait._replace(timed=timed)


def _stopped(state: str, context: WaitContext) -> Wait:
    if state == "T" or context.tracer is None:
        by = f" by {Signals(context.stop_signal).name}" if context.stop_signal in {*Signals} else ""
        return Wait(
            WaitKind.STOPPED, f"kill -CONT {context.pid}", verb=f"is stopped{by}; resume it with",
            lasting=f"has been stopped{by} for {{time}}; resume it with")  # fmt: skip
    pid, name = context.tracer
    return Wait(
        WaitKind.STOPPED, f"process {pid} ({name}), which traces it", verb="is stopped by",
        lasting="has been stopped for {time} by")  # fmt: skip


def _by_title(context: WaitContext) -> Wait | None:
    """Return the wait that PostgreSQL states in the title of its process."""
    title = " ".join(context.cmdline)
    if not (title.startswith("postgres: ") and title.endswith(" waiting")):
        return None
    query = f"SELECT pg_blocking_pids({context.pid})"
    return Wait(WaitKind.DATABASE_LOCK, f"a PostgreSQL lock: {query} names the process that holds it")


def _by_call(thread: WaitingThread, call: DecodedSyscall, context: WaitContext) -> Wait | None:
    name = call.name or ""
    if name == "futex":
        return _futex(thread, call, context)
    if name in FILE_LOCK_CALLS:
        return _file_lock(call, context)
    if name in _SLEEP_CALLS:
        return Wait(WaitKind.SLEEP, _time_left(thread, call), is_usual=True, verb="sleeps")
    if name in WAIT_CALLS:
        return _child(call, dict(context.children))
    if name in FORK_CALLS and thread.state == "D":
        return _vfork(dict(context.children))
    if name in _OPEN_CALLS and thread.wchan in _FIFO_FUNCTIONS and call.refers_to:
        return _fifo(call)
    if name in SIGNAL_CALLS:  # a shell waits for its children in this way
        which = f", such as the end of a child: {_children(dict(context.children))}" * bool(context.children)
        return Wait(WaitKind.SIGNAL, f"a signal{which}", pids=tuple(dict(context.children)), is_usual=True)
    if name in _EVENT_CALLS:
        return _name_resolution(thread, call) or _events(call, context)
    if name in (*_READ_CALLS, *_WRITE_CALLS, *_ACCEPT_CALLS, "connect"):
        return _transfer(thread, call, context)
    return None


def _futex(thread: WaitingThread, call: DecodedSyscall, context: WaitContext) -> Wait | None:
    gil = thread.gil
    if gil is not None and sleeps_on_gil(gil, call):
        if gil_state(gil, thread.ns_tid, call) == "holds":
            return None  # the thread has just got the GIL
        return Wait(WaitKind.GIL, "the GIL", context.tids.get(gil.holder), is_usual=not gil.holder,
                    address=gil.begin)  # fmt: skip
    python = thread.facts.wait
    if python is not None:
        tid, note = thread_to_act(thread, python, context.threads, context.tids)
        what = "the end of" if python.kind is WaitKind.THREAD and tid is not None else python.what
        return Wait(python.kind, what, tid, note=note, is_usual=python.is_usual, address=python.address)
    lock = lock_of(thread, context.tids, context.sleepers)
    if lock is None:
        return Wait(WaitKind.FUTEX, f"futex {call.refers_to[0]}", is_usual=True)
    owner = context.tids.get(lock.owner) if lock.owner is not None else None
    if lock.kind is WaitKind.THREAD:
        return Wait(WaitKind.THREAD, "the end of", owner, address=lock.address)
    variable = context.variable_at(lock.address)
    place = f"{variable} ({lock.address:#x})" if variable else f"{lock.address:#x}"
    what = _LOCK_TEXTS[lock.kind].format(place)
    is_usual = lock.kind in (WaitKind.CONDITION, WaitKind.SEMAPHORE)
    is_unknown = lock.owner is not None and owner is None
    elsewhere = lock.note or "which is in another process, or has ended"
    note = f"held by thread {lock.owner}, {elsewhere}" if is_unknown else lock.note
    return Wait(lock.kind, what, owner, note=note, is_usual=is_usual, address=lock.address)


def _fifo(call: DecodedSyscall) -> Wait:
    """Return the wait of open(2) until a process opens the other end of the FIFO (fifo(7))."""
    at = {"open": 1, "openat": 2}.get(call.name or "")  # index of the flags; flags of openat2 are in memory
    access = os.O_RDWR if at is None else call.syscall.args[at] & os.O_ACCMODE
    end = {os.O_RDONLY: "a writer", os.O_WRONLY: "a reader"}.get(access, "the other end")
    return Wait(WaitKind.OPEN_FIFO, f"{end} of FIFO {call.refers_to[0]}")


def _file_lock(call: DecodedSyscall, context: WaitContext) -> Wait | None:
    """Return the wait for a file lock; the inode of the file leads to its entry in /proc/locks."""
    inodes = {descriptor.inode for descriptor in call.descriptors}
    locks = [lock for lock in context.locks if lock.inode in inodes and lock.waiter in (context.pid, 0, -1)]
    if not locks:
        return None
    what = f"the {'flock' if call.name == 'flock' else 'record lock'} on {call.descriptors[0].text}"
    holders = dict.fromkeys(lock.holder for lock in locks)  # several holders lock different parts of the file
    return Wait(WaitKind.FILE_LOCK, what, pids=tuple(holders) if min(holders) > 0 else ())


def _time_left(thread: WaitingThread, call: DecodedSyscall) -> str:
    """Return the rest of a sleep as text.  If `left_s` is None, the sleep began when the thread last ran."""
    asked, left = call.timeout_s, call.left_s
    if left is None and asked is not None and thread.idle_s is not None:
        left = max(0.0, asked - thread.idle_s)
    if left is None:
        return f"{asked:g} s" if asked is not None else ""
    return f"{left:.1f} s more{f' of {asked:g} s' if asked is not None else ''}"


def _child(call: DecodedSyscall, children: Mapping[int, str]) -> Wait:
    if call.refers_to[0] == "any child":
        which = f": {_children(children)}" if children else ""
        return Wait(WaitKind.CHILD, f"a child to end{which}", pids=tuple(children))
    asked = int(call.refers_to[0].rpartition(" ")[2])  # in the pid namespace of the process
    pid = next(iter(children)) if asked not in children and len(children) == 1 else asked
    child = f"child {pid} ({children[pid]})" if pid in children else f"child {pid}"
    return Wait(WaitKind.CHILD, f"{child} to end", pids=(pid,) if pid in children else ())


def _vfork(children: Mapping[int, str]) -> Wait:
    which = f"{': one of' * (len(children) > 1)} {_children(children)}".rstrip()
    pids = tuple(children) if len(children) == 1 else ()
    return Wait(WaitKind.VFORK, f"its vfork child{which} to exec or to end", pids=pids)


def _children(children: Mapping[int, str]) -> str:
    names = [f"{pid} ({name})" for pid, name in islice(children.items(), _MAX_CHILDREN_NAMED)]
    return ", ".join(names) + ", ..." * (len(children) > len(names))


def _uninterruptible(thread: WaitingThread) -> Wait | None:
    """Return an uninterruptible wait, described by its kernel function; None: the thread has none."""
    if thread.state != "D":
        return None
    call, function = thread.call, thread.wchan or "?"
    request = f" for {call.name}({', '.join(call.refers_to)})" if call and call.name else ""
    cause = "a disk, a file server or a FUSE daemon"
    end = "signals, often even kill -9, take effect only when the call ends"
    return Wait(WaitKind.KERNEL, f"the kernel{request}, uninterruptibly, in {function}: {cause}; {end}")


def _transfer(thread: WaitingThread, call: DecodedSyscall, context: WaitContext) -> Wait | None:
    if not call.descriptors:
        return None
    descriptor, name = call.descriptors[0], call.name or ""
    if name == "splice" and descriptor.kind != "pipe":
        descriptor = call.descriptors[-1]  # the pipe into which a file or socket is copied
    if name == "connect":
        what = f"an answer to connect: {descriptor.text}"
        return Wait(WaitKind.CONNECT, what, pids=_peers(descriptor, context, "rw"))
    if name in _ACCEPT_CALLS:
        return Wait(WaitKind.ACCEPT, f"a connection on {descriptor.text}", is_usual=True)
    if descriptor.kind == "pipe" or IN_PIPE.search(thread.wchan or ""):
        # splice(2) reads from a pipe or writes to a pipe; the mode of the descriptor tells the direction.
        is_full = name in _WRITE_CALLS and descriptor.mode != "r"
        pipe = f"pipe {descriptor.inode}" if descriptor.kind == "pipe" else f"FIFO {descriptor.text}"
        pipe += f", which is {'full' if is_full else 'empty'} (fd {descriptor.fd})"
        empty = Wait(WaitKind.EMPTY_PIPE, f"data in {pipe}", is_usual=True)
        wait = Wait(WaitKind.FULL_PIPE, f"room in {pipe}") if is_full else empty
        return _with_peers(wait, descriptor, context)
    if name in _READ_CALLS:
        data = Wait(WaitKind.READ, f"data from {_text(descriptor)}", is_usual=descriptor.kind != "file")
        return _name_resolution(thread, call) or _with_peers(data, descriptor, context)
    return _with_peers(Wait(WaitKind.WRITE, f"room to write to {_text(descriptor)}"), descriptor, context)


def _text(descriptor: Descriptor) -> str:
    return f"fd {descriptor.fd} ({descriptor.text})"


def _with_peers(wait: Wait, descriptor: Descriptor, context: WaitContext) -> Wait:
    """Return `wait` with the pids of the processes at the other end of its pipe or socket."""
    mode = "rw" if descriptor.kind == "socket" else "w" if "r" in descriptor.mode else "r"
    others, own = (_peers(descriptor, context, mode, own=own) for own in (False, True))
    pids = others or own
    listens = any(p.near.listens for p in context.peers if p.near.inode == descriptor.inode)
    note = "which listens there, and has not accepted the connection" if listens and pids else ""
    return wait._replace(pids=pids, note=note, own_end=bool(own))


def _peers(descriptor: Descriptor, context: WaitContext, mode: str, *, own: bool = False) -> tuple[int, ...]:
    """Return the pids of other processes with the other end open in `mode`; if `own`, only this process."""
    peers = (p for p in context.peers if p.near.inode == descriptor.inode and mode in p.mode)
    return tuple(dict.fromkeys(peer.pid for peer in peers if (peer.pid == context.pid) is own))


def _events(call: DecodedSyscall, context: WaitContext) -> Wait:
    timeout = call.timeout_s
    limit = f", at most {timeout:g} s" if timeout is not None and timeout < _ENDLESS_S else ""
    if len(call.descriptors) == 1 and call.descriptors[0].kind != "epoll":
        descriptor = call.descriptors[0]
        wait = Wait(WaitKind.EVENTS, f"events on {_text(descriptor)}{limit}", is_usual=True)
        return _with_peers(wait, descriptor, context)
    is_epoll = (call.name or "").startswith("epoll") and call.descriptors
    count = len(call.descriptors[0].watches if is_epoll else call.descriptors)
    if not count:
        length = limit.removeprefix(", ") or "without a limit"
        return Wait(WaitKind.SLEEP, length, is_usual=True, verb="sleeps")
    return Wait(WaitKind.EVENTS, f"events on {count} fd{'s' * (count != 1)}{limit}", is_usual=True)


def _name_resolution(thread: WaitingThread, call: DecodedSyscall) -> Wait | None:
    """Return the wait for a DNS server: the resolver is on the stack, and the socket is not local."""
    sockets = (d for d in call.descriptors if d.kind == "socket" and not d.text.startswith("unix"))
    server = next(sockets, None)
    if server is None or not any(name in _RESOLVER_FUNCTIONS for name in thread.functions):
        return None
    return Wait(WaitKind.NAME_RESOLUTION, f"an answer from the DNS server: {server.text}")
