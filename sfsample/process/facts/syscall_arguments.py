"""Decodes the arguments of a system call: descriptors, paths, time-outs, children.

Tables give the meaning of each argument.  While the process lives, sfsample looks up the object to which an
argument refers, and keeps a text about this object.  Arguments that mean nothing to a user (buffers, sizes)
are left out; the JSON has all numbers.  sfsample decodes only calls of its own machine, because other
machines lay out structures differently.  On s390x, libc makes socket calls through socketcall(2); sfsample
decodes the socket call.

Source: syscall(2) and the man page of each call; <linux/futex.h>; <linux/net.h>.
"""

import sys
from collections.abc import Callable, Iterator
from itertools import islice
from struct import Struct, error, unpack
from typing import NamedTuple

from sfsample.core.arch import ByteOrder
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.proc_text import SyscallInfo

_MAX_POLLED = 64  # descriptors of a poll that are looked up
_MAX_SELECTED = 1024  # FD_SETSIZE
_POLLFD, _TIMESPEC = Struct("=ihh"), Struct("=qq")
_FUTEX_COMMANDS = {0: "wait", 1: "wake", 6: "lock pi", 9: "wait", 11: "wait requeue pi", 13: "lock pi"}
_FUTEX_COMMAND_MASK, _FUTEX_LOCK_PI = 127, 6
_FUTEX_TIMEOUT_IS_INSTANT = {0: False, 6: True, 9: True, 11: True, 13: True}  # False: duration
_FUTEX_CLOCK_REALTIME = 256
_CLOCK_REALTIME, _CLOCK_MONOTONIC = 0, 1
_TIMER_ABSTIME = 1
_P_PID = 1  # other values of waitid(2) mean any child, a process group, or a descriptor
_PAGE_BYTES = 4096
_MAX_WATCHED = 1000  # descriptors of an epoll that are looked up
# first argument of socketcall -> name of the call, number of its arguments; only calls that may sleep
_SOCKET_CALLS = {
    3: ("connect", 3), 5: ("accept", 3), 9: ("sendto", 4), 10: ("recvfrom", 4), 11: ("sendto", 6),
    12: ("recvfrom", 6), 16: ("sendmsg", 3), 17: ("recvmsg", 3), 18: ("accept4", 4), 19: ("recvmmsg", 5),
    20: ("sendmmsg", 4),
}  # fmt: skip


class DecodedSyscall(NamedTuple):
    """A system call, and the objects to which its arguments refer."""

    syscall: SyscallInfo
    name: str | None
    refers_to: tuple[str, ...] = ()  # texts of the arguments for the user; may have control characters
    descriptors: tuple[Descriptor, ...] = ()
    timeout_s: float | None = None  # duration that the thread requested; None: no limit, or unknown
    connections: tuple[Descriptor, ...] = ()  # first sockets that an epoll watches; no listening sockets
    has_more_connections: bool = False  # True: the epoll watches other sockets that are connected
    left_s: float | None = None  # seconds until the call times out; None: no limit, or unknown


class TargetLookup(NamedTuple):
    """Functions that look up facts of a target; a result of None means that the fact is unknown."""

    read: Callable[[int, int], bytes | None]  # memory, by address and size
    descriptor: Callable[[int], Descriptor | None] = lambda _fd: None
    now: Callable[[int], float | None] = lambda _clock: None  # time of a POSIX clock in seconds
    max_connections: int = 0  # see `DecodedSyscall.connections`


WAIT_CALLS = ("wait4", "waitid")
SIGNAL_CALLS = ("pause", "rt_sigsuspend", "rt_sigtimedwait")
FORK_CALLS = ("vfork", "clone", "clone3")
CHILD_CALLS = (*WAIT_CALLS, *FORK_CALLS)
FILE_LOCK_CALLS = ("flock", "fcntl")
_FIRST_IS_FD = (
    "read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2",
    "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "accept", "accept4", "connect",
    "fsync", "fdatasync", "ftruncate", "ioctl", "flock", "fcntl", "getdents", "getdents64", "fallocate",
    "sync_file_range", "syncfs", "vmsplice", "io_uring_enter", "close", "fstat", "readahead",
)  # fmt: skip
_FD_ARGUMENTS = dict.fromkeys(_FIRST_IS_FD, (0,)) | {
    "sendfile": (0, 1), "copy_file_range": (0, 2), "splice": (0, 2), "tee": (0, 1),
}  # fmt: skip
_PATH_ARGUMENT = {"open": 0, "openat": 1, "openat2": 1, "stat": 0, "newfstatat": 1, "access": 0, "statfs": 0,
                  "unlink": 0, "mkdir": 0, "rename": 0, "execve": 0, "statx": 1}  # fmt: skip


def decode_syscall(info: SyscallInfo, name: str | None, lookup: TargetLookup) -> DecodedSyscall:
    """Look up the objects to which the arguments of a system call refer."""
    call = DecodedSyscall(info, name)
    try:
        if name == "socketcall":
            call = _socket_call(call, lookup)
        decode = _DECODERS.get(call.name or "")
        return decode(call, lookup) if decode else call
    except (error, OverflowError):  # the target has changed its memory meanwhile
        return call


def _socket_call(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    """Return the socket call inside a socketcall(2)."""
    name, count = _SOCKET_CALLS.get(call.syscall.args[0], (None, 0))
    data = lookup.read(call.syscall.args[1], 8 * count) if name else None
    if data is None:
        return call
    return call._replace(syscall=call.syscall._replace(args=unpack(f"={count}Q", data)), name=name)


# -- descriptors and paths


def _add_fds(call: DecodedSyscall, lookup: TargetLookup, *fds: int) -> DecodedSyscall:
    pairs = [(fd, lookup.descriptor(fd)) for fd in fds]
    return call._replace(
        refers_to=(*call.refers_to, *(f"{fd} <{found.text}>" if found else str(fd) for fd, found in pairs)),
        descriptors=(*call.descriptors, *(found for _, found in pairs if found)),
    )


def _fds(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    return _add_fds(call, lookup, *(_int(call.syscall.args[at]) for at in _FD_ARGUMENTS[call.name or ""]))


def _path(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    at = call.syscall.args[_PATH_ARGUMENT[call.name or ""]]
    data = lookup.read(at, _PAGE_BYTES - at % _PAGE_BYTES) or b""
    path, end, _ = data.partition(b"\0")
    return call._replace(refers_to=(path.decode("utf-8", "replace"),)) if end else call


def _epoll(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    call = _add_fds(call, lookup, _int(call.syscall.args[0]))
    watched = map(lookup.descriptor, call.descriptors[0].watches[:_MAX_WATCHED] if call.descriptors else ())
    sockets = (d for d in watched if d and d.kind == "socket" and not d.text.endswith(" listening"))
    call = call._replace(connections=tuple(islice(sockets, lookup.max_connections)),
                         has_more_connections=next(sockets, None) is not None)  # fmt: skip
    if call.name == "epoll_pwait2":
        return _duration_at(call, lookup, call.syscall.args[3])
    return _milliseconds(call, call.syscall.args[3])


def _poll(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    at, count, timeout = call.syscall.args[:3]
    data = lookup.read(at, _POLLFD.size * min(count, _MAX_POLLED)) if count else b""
    fds = [fd for fd, _, _ in _POLLFD.iter_unpack(data or b"") if fd >= 0]
    call = _add_fds(call, lookup, *fds)
    if count > _MAX_POLLED:
        call = call._replace(refers_to=(*call.refers_to, f"{count - _MAX_POLLED} more"))
    return _duration_at(call, lookup, timeout) if call.name == "ppoll" else _milliseconds(call, timeout)


def _select(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    count = min(_int(call.syscall.args[0]), _MAX_SELECTED)
    sets = (lookup.read(at, (count + 63) // 64 * 8) for at in call.syscall.args[1:4] if at and count > 0)
    chosen = {fd for data in sets if data for fd in fd_set_members(data, sys.byteorder)}
    call = _add_fds(call, lookup, *sorted(fd for fd in chosen if fd < count))
    return _duration_at(call, lookup, call.syscall.args[4], 1e-9 if call.name == "pselect6" else 1e-6)


def fd_set_members(fd_set: bytes, byteorder: ByteOrder) -> Iterator[int]:
    """Yield the descriptors in an fd_set: words of 64 bits; in a word, the lowest bit comes first."""
    for at in range(0, len(fd_set), 8):
        word = int.from_bytes(fd_set[at : at + 8], byteorder)
        yield from (8 * at + bit for bit in range(64) if word >> bit & 1)


# -- waits: futex, sleep, children


def _futex(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    address, operation, _, timeout = call.syscall.args[:4]
    command = operation & _FUTEX_COMMAND_MASK
    call = call._replace(refers_to=(f"{address:#x}", _FUTEX_COMMANDS.get(command, f"op {command}")))
    if not timeout or command not in _FUTEX_TIMEOUT_IS_INSTANT:
        return call
    if not _FUTEX_TIMEOUT_IS_INSTANT[command]:
        return _duration_at(call, lookup, timeout)
    is_realtime = operation & _FUTEX_CLOCK_REALTIME or command == _FUTEX_LOCK_PI
    return _instant_at(call, lookup, timeout, _CLOCK_REALTIME if is_realtime else _CLOCK_MONOTONIC)


def _sleep(call: DecodedSyscall, lookup: TargetLookup) -> DecodedSyscall:
    """Look up the duration of a sleep; after a stop, the kernel has written the remaining duration."""
    restarted = call.syscall.restarted
    if call.name == "nanosleep":
        return _duration_at(call, lookup, call.syscall.args[restarted])
    clock, flags, asked, left = call.syscall.args[:4]
    if flags & _TIMER_ABSTIME:
        return _instant_at(call, lookup, asked, clock)
    return _duration_at(call, lookup, left if restarted else asked)


def _child(call: DecodedSyscall, _lookup: TargetLookup) -> DecodedSyscall:
    pid = _int(call.syscall.args[0 if call.name == "wait4" else 1])
    is_one = pid > 0 if call.name == "wait4" else call.syscall.args[0] == _P_PID
    return call._replace(refers_to=(f"child {pid}" if is_one else "any child",))


# -- times


def _milliseconds(call: DecodedSyscall, raw: int) -> DecodedSyscall:
    milliseconds = _int(raw)
    return call if milliseconds < 0 else call._replace(timeout_s=milliseconds / 1000)


def _duration_at(call: DecodedSyscall, lookup: TargetLookup, at: int, unit: float = 1e-9) -> DecodedSyscall:
    return call._replace(timeout_s=_seconds_at(lookup, at, unit))


def _instant_at(call: DecodedSyscall, lookup: TargetLookup, at: int, clock: int) -> DecodedSyscall:
    end, now = _seconds_at(lookup, at), lookup.now(clock)
    return call if end is None or now is None else call._replace(left_s=max(0.0, end - now))


def _seconds_at(lookup: TargetLookup, at: int, unit: float = 1e-9) -> float | None:
    """Read a struct timespec; `unit` is the unit of the second field, in seconds (1e-6 for a timeval)."""
    data = lookup.read(at, _TIMESPEC.size) if at else None
    if data is None:
        return None
    seconds, parts = _TIMESPEC.unpack(data)
    return float(seconds + parts * unit)


def _int(value: int) -> int:
    """Return the low half of a register as a C int."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


_DECODERS: dict[str, Callable[[DecodedSyscall, TargetLookup], DecodedSyscall]] = {
    **dict.fromkeys(_FD_ARGUMENTS, _fds),
    **dict.fromkeys(_PATH_ARGUMENT, _path),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2"), _epoll),
    **dict.fromkeys(("poll", "ppoll"), _poll),
    **dict.fromkeys(("select", "pselect6"), _select),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), _sleep),
    **dict.fromkeys(WAIT_CALLS, _child),
    "futex": _futex,
}
