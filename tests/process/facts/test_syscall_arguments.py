"""Arguments of system calls are decoded: descriptors, time-outs, paths, children."""

import os
from struct import pack

import pytest

from sfsample.core.arch import ByteOrder
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import DecodedSyscall, decode_syscall, fd_set_members
from sfsample.process.proc_text import SyscallInfo

MINUS_ONE = (1 << 64) - 1


SOCKETS = {10: "tcp 1.2.3.4:80 listening", 11: "tcp 1.2.3.4:80 -> 5.6.7.8:9", 12: "unix /run/x", 13: "udp"}


class FakeLookup:
    """Memory, given as a1000=b"..." for address 0x1000, descriptors below 100, and two clocks.

    Descriptor 99 is an epoll, which watches files, a listening socket and three connections.
    """

    def __init__(self, **memory: bytes) -> None:
        self._memory = {int(at[1:], 16): data for at, data in memory.items()}

    max_connections = 2

    def descriptor(self, fd: int) -> Descriptor | None:
        if fd in SOCKETS:
            return Descriptor(fd, "socket", 1, "rw", SOCKETS[fd])
        if fd == 99:
            return Descriptor(fd, "epoll", 0, "rw", "7 fds", (5, 10, 200, 11, 12, 13, 14))
        return Descriptor(fd, "file", 1, "rw", f"file{fd}") if fd < 100 else None

    def read(self, address: int, size: int) -> bytes | None:
        data = self._memory.get(address, b"")
        return data[:size] if len(data) >= size else None

    def now(self, clock: int) -> float | None:
        return {0: 1000.0, 1: 50.0}.get(clock)


def decoded(name: str | None, *args: int, **memory: bytes) -> DecodedSyscall:
    return decode_syscall(SyscallInfo(0, (*args, *[0] * (6 - len(args)))), name, FakeLookup(**memory))


def timespec(value: float) -> bytes:
    return pack("=qq", int(value), int(value % 1 * 1e9))


def test_socketcall_is_decoded_as_the_call_it_makes() -> None:
    arguments = pack("=6Q", 5, 0x1000, 10, 0, 0, 0)
    call = decoded("socketcall", 12, 0x5000, x5000=arguments)
    assert (call.name, call.refers_to) == ("recvfrom", ("5 <file5>",))
    assert call.syscall.args == (5, 0x1000, 10, 0, 0, 0)
    assert decoded("socketcall", 10, 0x5000, x5000=arguments[:32]).name == "recvfrom"
    assert decoded("socketcall", 12, 0x6000, x5000=arguments).name == "socketcall", "it cannot be read"
    assert decoded("socketcall", 12, 0x5000, x5000=arguments[:40]).name == "socketcall"
    assert decoded("socketcall", 99, 0x5000, x5000=arguments).name == "socketcall"


def test_descriptor_arguments_are_looked_up() -> None:
    assert decoded("read", 5, 0x1000, 10).refers_to == ("5 <file5>",)
    assert decoded("read", 500).refers_to == ("500",), "it is closed, or cannot be read"
    assert decoded("sendfile", 5, 6).refers_to == ("5 <file5>", "6 <file6>")
    assert decoded("splice", 5, 0, 6).refers_to == ("5 <file5>", "6 <file6>")
    polled = b"".join(pack("=ihh", fd, 1, 0) for fd in (3, -1, 4))
    poll = decoded("poll", 0x10, 3, 5000, a10=polled)
    assert (poll.refers_to, poll.timeout_s) == (("3 <file3>", "4 <file4>"), 5.0)
    assert decoded("poll", 0x10, 3, MINUS_ONE, a10=polled).timeout_s is None
    many = decoded("poll", 0x10, 70, 0, a10=pack("=ihh", 3, 1, 0) * 70)
    assert many.refers_to[-1] == "6 more"
    select = decoded("select", 5, 0x10, 0x20, 0, 0x30, a10=pack("=Q", 0b01000), a20=pack("=Q", 0b10001),
                     a30=pack("=qq", 2, 500_000))  # fmt: skip
    assert ([d.fd for d in select.descriptors], select.timeout_s) == ([0, 3, 4], 2.5)


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_fd_set_is_words_of_64_bits(byteorder: ByteOrder) -> None:
    chosen = {0, 3, 63, 64, 130}
    words = (sum(1 << fd % 64 for fd in chosen if fd // 64 == number) for number in range(3))
    assert {*fd_set_members(b"".join(word.to_bytes(8, byteorder) for word in words), byteorder)} == chosen


def test_timeouts_are_durations_or_instants() -> None:
    assert decoded("nanosleep", 0x10, a10=timespec(2.5)).timeout_s == 2.5
    relative = decoded("clock_nanosleep", 1, 0, 0x10, a10=timespec(7))
    assert (relative.timeout_s, relative.left_s) == (7, None)
    absolute = decoded("clock_nanosleep", 1, 1, 0x10, a10=timespec(57))
    assert (absolute.timeout_s, absolute.left_s) == (None, 7)
    assert decoded("futex", 0x99, 0x189, 0, 0x10, a10=timespec(1003)).left_s == 3, "on the wall clock"
    assert decoded("futex", 0x99, 0x89, 0, 0x10, a10=timespec(52)).left_s == 2, "on the monotonic clock"
    assert decoded("futex", 0x99, 0x80, 0, 0x10, a10=timespec(4)).timeout_s == 4, "a duration"
    assert decoded("futex", 0x99, 0x80).refers_to == ("0x99", "wait")
    assert decoded("epoll_wait", 5, 0, 10, 100).timeout_s == 0.1
    call = decoded("epoll_wait", 99, 0, 10, 100)
    assert ([found.fd for found in call.connections], call.has_more_connections) == ([11, 12], True)
    assert decoded("epoll_wait", 5, 0, 10, 100).connections == ()
    assert decoded("epoll_pwait2", 5, 0, 10, 0x10, a10=timespec(1)).timeout_s == 1


def test_restarted_sleep_has_the_duration_that_was_left() -> None:
    memory = FakeLookup(a10=timespec(7), a20=timespec(5))
    for name, args in (("clock_nanosleep", (1, 0, 0x10, 0x20)), ("nanosleep", (0x10, 0x20))):
        restarted = SyscallInfo(0, args, restarted=True)
        assert decode_syscall(restarted, name, memory).timeout_s == 5
        without_left = restarted._replace(args=(*args[:-1], 0))
        assert decode_syscall(without_left, name, memory).timeout_s is None


def test_children_and_paths_are_decoded_and_other_calls_are_not() -> None:
    assert decoded("wait4", MINUS_ONE & 0xFFFFFFFF).refers_to == decoded("waitid", 0).refers_to
    assert decoded("waitid", 0).refers_to == ("any child",)
    for group in (decoded("waitid", 2, 77), decoded("waitid", 3, 77), decoded("wait4", -77 & MINUS_ONE)):
        assert group.refers_to == ("any child",), "77 is a process group or a descriptor"
    assert decoded("wait4", 77).refers_to == decoded("waitid", 1, 77).refers_to == ("child 77",)
    assert decoded("openat", 0, 0xFF0, aFF0=b"/mnt/nfs/file\0".ljust(16)).refers_to == ("/mnt/nfs/file",)
    assert decoded("openat", 0, 0xFF0).refers_to == (), "its memory cannot be read"
    for name in (None, "brk", "no such call"):
        assert decoded(name, 1, 2).refers_to == ()


def test_syscall_names_are_those_of_this_machine() -> None:
    from sfsample.process.syscall_names import _names

    assert _names()[{"x86_64": 202, "aarch64": 98, "s390x": 238}[os.uname().machine]] == "futex"
    if os.uname().machine != "s390x":
        from ptrace.syscall import SYSCALL_NAMES

        assert _names() == SYSCALL_NAMES
