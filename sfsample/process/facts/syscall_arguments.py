"""What the arguments of a system call refer to.

Law: one table says which argument is what; what it refers to is looked up while the process is there, and
kept as words.  Arguments that tell a person nothing (buffers, sizes) are left out; the JSON has them all.
What it refers to in memory is as this machine has it: no call of another one is decoded.  socketcall(2), by
which libc on s390x asks for what concerns sockets, is told as the call that it stands for.

Source: syscall(2) and the page of each call; <linux/futex.h>; <linux/net.h>.
"""

import sys
from collections.abc import Callable, Iterator
from struct import Struct, error, unpack
from typing import NamedTuple, Protocol

from sfsample.core.arch import ByteOrder
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.thread_facts import Syscall

_MOST_POLLED = 64
_POLLFD, _TIME = Struct("=ihh"), Struct("=qq")
_FUTEX_OPS = {0: "wait", 1: "wake", 6: "lock pi", 9: "wait", 11: "wait requeue pi", 13: "lock pi"}
_FUTEX_TIMED = {0: False, 6: True, 9: True, 11: True, 13: True}  # is its time-out an instant, not a length
_FUTEX_REALTIME = 256
_ABSOLUTE = 1
_ANY_CHILD = (1 << 32) - 1
_PAGE = 4096
# by socketcall's first argument; those that may sleep.  The second: where the arguments are
_SOCKET_CALLS = {
    3: ("connect", 3), 5: ("accept", 3), 9: ("sendto", 4), 10: ("recvfrom", 4), 11: ("sendto", 6),
    12: ("recvfrom", 6), 16: ("sendmsg", 3), 17: ("recvmsg", 3), 18: ("accept4", 4), 19: ("recvmmsg", 5),
    20: ("sendmmsg", 4),
}  # fmt: skip


class Call(NamedTuple):
    """A system call with what it refers to.

    `words` are its telling arguments, for people, unclean.  `left_s`: until when it sleeps at most, in
    seconds from when it was looked at; None: for ever, or unknown.  `asked_s`: the length that was asked for.
    """

    syscall: Syscall
    name: str | None
    words: tuple[str, ...] = ()
    descriptors: tuple[Descriptor, ...] = ()
    asked_s: float | None = None
    left_s: float | None = None


class DescriptorLookup(Protocol):
    """What is looked up in the target."""

    def descriptor(self, fd: int) -> Descriptor | None:
        """Return what a file descriptor refers to."""
        ...

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes of its memory."""
        ...

    def now(self, clock: int) -> float | None:
        """Return the time of a POSIX clock, in seconds."""
        ...


_FIRST_IS_FD = (
    "read", "pread64", "readv", "preadv", "preadv2", "write", "pwrite64", "writev", "pwritev", "pwritev2",
    "recvfrom", "recvmsg", "recvmmsg", "sendto", "sendmsg", "sendmmsg", "accept", "accept4", "connect",
    "fsync", "fdatasync", "ftruncate", "ioctl", "flock", "fcntl", "getdents", "getdents64", "fallocate",
    "sync_file_range", "syncfs", "vmsplice", "io_uring_enter", "close", "fstat", "readahead",
)  # fmt: skip
_BOTH_ARE_FDS = ("sendfile", "copy_file_range", "splice", "tee")
_PATHS = {"open": 0, "openat": 1, "openat2": 1, "stat": 0, "newfstatat": 1, "access": 0, "statfs": 0,
          "unlink": 0, "mkdir": 0, "rename": 0, "execve": 0, "statx": 1}  # fmt: skip


def decode(syscall: Syscall, name: str | None, look: DescriptorLookup) -> Call:
    """Look up what a system call refers to."""
    call = Call(syscall, name)
    try:
        if name == "socketcall":
            call = _stands_for(call, look)
        return _DECODERS.get(call.name or "", _nothing)(call, look)
    except (error, OverflowError):  # its memory holds something else by now
        return call


def _stands_for(call: Call, look: DescriptorLookup) -> Call:
    """Return the call with the name and the arguments of what socketcall(2) does; its number stays."""
    name, count = _SOCKET_CALLS.get(call.syscall.args[0], (None, 0))
    data = look.read(call.syscall.args[1], 8 * count) if name else None
    if data is None:
        return call
    return call._replace(syscall=call.syscall._replace(args=unpack(f"={count}Q", data)), name=name)


def _nothing(call: Call, _look: DescriptorLookup) -> Call:
    return call


def _fds(call: Call, look: DescriptorLookup, *numbers: int) -> Call:
    """Add descriptors and their words."""
    pairs = [(number, look.descriptor(number)) for number in numbers]
    return call._replace(
        words=(*call.words, *(_fd_words(number, found) for number, found in pairs)),
        descriptors=(*call.descriptors, *(found for _, found in pairs if found)),
    )


def _fd_words(number: int, found: Descriptor | None) -> str:
    return f"{number} <{found.text}>" if found else str(number)


def _one_fd(call: Call, look: DescriptorLookup) -> Call:
    return _fds(call, look, _int(call.syscall.args[0]))


def _two_fds(call: Call, look: DescriptorLookup) -> Call:
    second = call.syscall.args[2 if call.name in ("copy_file_range", "splice") else 1]
    return _fds(call, look, _int(call.syscall.args[0]), _int(second))


def _path(call: Call, look: DescriptorLookup) -> Call:
    at = call.syscall.args[_PATHS[call.name or ""]]
    data = look.read(at, _PAGE - at % _PAGE) or b""
    path, end, _ = data.partition(b"\0")
    return call._replace(words=(path.decode("utf-8", "replace"),)) if end else call


def _epoll(call: Call, look: DescriptorLookup) -> Call:
    call = _one_fd(call, look)
    if call.name == "epoll_pwait2":
        return _length_at(call, look, call.syscall.args[3])
    return _milliseconds(call, call.syscall.args[3])


def _poll(call: Call, look: DescriptorLookup) -> Call:
    at, count, timeout = call.syscall.args[:3]
    data = look.read(at, _POLLFD.size * min(count, _MOST_POLLED)) if count else b""
    fds = [fd for fd, _, _ in _POLLFD.iter_unpack(data or b"") if fd >= 0]
    call = _fds(call, look, *fds)
    if count > _MOST_POLLED:
        call = call._replace(words=(*call.words, f"{count - _MOST_POLLED} more"))
    return _length_at(call, look, timeout) if call.name == "ppoll" else _milliseconds(call, timeout)


def _select(call: Call, look: DescriptorLookup) -> Call:
    count = min(_int(call.syscall.args[0]), 1024)
    sets = (look.read(at, (count + 63) // 64 * 8) for at in call.syscall.args[1:4] if at and count > 0)
    chosen = {fd for data in sets if data for fd in members(data, sys.byteorder)}
    fds = sorted(fd for fd in chosen if fd < count)
    call = _fds(call, look, *fds)
    if call.name == "pselect6":
        return _length_at(call, look, call.syscall.args[4])
    return _length_at(call, look, call.syscall.args[4], 1e-6)


def members(fd_set: bytes, byteorder: ByteOrder) -> Iterator[int]:
    """Yield the descriptors in a set, which is words of 64, the lowest bit of each first."""
    for at in range(0, len(fd_set), 8):
        word = int.from_bytes(fd_set[at : at + 8], byteorder)
        yield from (8 * at + bit for bit in range(64) if word >> bit & 1)


def _futex(call: Call, look: DescriptorLookup) -> Call:
    address, op, _, timeout = call.syscall.args[:4]
    command = op & 127
    call = call._replace(words=(f"{address:#x}", _FUTEX_OPS.get(command, f"op {command}")))
    if not timeout or command not in _FUTEX_TIMED:
        return call
    if not _FUTEX_TIMED[command]:
        return _length_at(call, look, timeout)
    return _instant_at(call, look, timeout, 0 if op & _FUTEX_REALTIME or command == 6 else 1)


def _sleep(call: Call, look: DescriptorLookup) -> Call:
    """Look up the length, or what the kernel says that is left of it when it carries on after a stop."""
    if call.name == "nanosleep":
        return _length_at(call, look, call.syscall.args[call.syscall.again])
    clock, flags, asked, left = call.syscall.args[:4]
    if flags & _ABSOLUTE:
        return _instant_at(call, look, asked, clock)
    return _length_at(call, look, left if call.syscall.again else asked)


def _child(call: Call, _look: DescriptorLookup) -> Call:
    pid = call.syscall.args[0 if call.name == "wait4" else 1]
    anyone = pid & _ANY_CHILD == _ANY_CHILD if call.name == "wait4" else not call.syscall.args[0]
    return call._replace(words=("any child" if anyone else f"child {_int(pid)}",))


# -- times


def _milliseconds(call: Call, raw: int) -> Call:
    milliseconds = _int(raw)
    return call if milliseconds < 0 else call._replace(asked_s=milliseconds / 1000)


def _length_at(call: Call, look: DescriptorLookup, at: int, unit: float = 1e-9) -> Call:
    data = look.read(at, _TIME.size) if at else None
    if data is None:
        return call
    seconds, parts = _TIME.unpack(data)
    return call._replace(asked_s=seconds + parts * unit)


def _instant_at(call: Call, look: DescriptorLookup, at: int, clock: int) -> Call:
    data, now = look.read(at, _TIME.size), look.now(clock)
    if data is None or now is None:
        return call
    seconds, parts = _TIME.unpack(data)
    return call._replace(left_s=max(0.0, seconds + parts * 1e-9 - now))


def _int(value: int) -> int:
    """Return the low half of a register as a C int."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


_DECODERS: dict[str, Callable[[Call, DescriptorLookup], Call]] = {
    **dict.fromkeys(_FIRST_IS_FD, _one_fd),
    **dict.fromkeys(_BOTH_ARE_FDS, _two_fds),
    **dict.fromkeys(_PATHS, _path),
    **dict.fromkeys(("epoll_wait", "epoll_pwait", "epoll_pwait2"), _epoll),
    **dict.fromkeys(("poll", "ppoll"), _poll),
    **dict.fromkeys(("select", "pselect6"), _select),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), _sleep),
    **dict.fromkeys(("wait4", "waitid"), _child),
    "futex": _futex,
}
