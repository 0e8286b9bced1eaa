"""What system calls refer to: descriptors, sockets, times, file locks.

Law: looked up in this very process, and compared with what Python knows of its own descriptors.
"""

import fcntl
import os
import re
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from struct import pack

import pytest

from sfsample.core.arch import ByteOrder
from sfsample.process.facts.descriptors import Descriptor, DescriptorReader
from sfsample.process.facts.file_locks import FileLock, parse_locks
from sfsample.process.facts.peers import End, Wanted, ends
from sfsample.process.facts.syscall_arguments import Call, decode, members
from sfsample.process.facts.tcp_peers import FarEnd, tcp_far_end
from sfsample.process.facts.thread_facts import Syscall
from sfsample.process.procfs import ProcFs


@pytest.fixture
def reader() -> Iterator[DescriptorReader]:
    proc = ProcFs(os.getpid())
    yield DescriptorReader(proc)
    proc.close()


def text(reader: DescriptorReader, fd: int) -> str:
    found = reader.look(fd)
    assert found is not None
    return found.text


def address(one: socket.socket) -> str:
    host, port = one.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_tcp(reader: DescriptorReader, family: socket.AddressFamily, host: str) -> None:
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"there is no {host} here")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        served, _ = listener.accept()
        with served:
            protocol = "tcp6" if family == socket.AF_INET6 else "tcp"
            assert text(reader, listener.fileno()) == f"{protocol} {address(listener)} listening"
            for near, far in ((client, served), (served, client)):
                expected = f"{protocol} {address(near)} -> {address(far)} established"
                assert text(reader, near.fileno()) == expected


@pytest.mark.parametrize(("there", "here"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_the_other_end_of_a_connection(reader: DescriptorReader, there: str, here: str) -> None:
    """Of IPv4, of IPv6, and of IPv4 to a server that takes both."""
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    try:
        listener = socket.create_server((there, 0), family=family, dualstack_ipv6=there == "::")
    except OSError:
        pytest.skip(f"there is no {there} here")
    with listener, socket.create_connection((here, listener.getsockname()[1])) as client:
        assert far(reader, client) == FarEnd(inode(listener), listens=True), "nobody has accepted it"
        reader = DescriptorReader(reader._proc)
        served, _ = listener.accept()
        with served:
            assert far(reader, client) == FarEnd(inode(served))
            assert far(reader, served) == FarEnd(inode(client))
            assert far(reader, listener) is None


def test_the_other_end_of_a_unix_socket(reader: DescriptorReader) -> None:
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_UNIX) as alone:
        assert far(reader, left) == FarEnd(inode(right))
        assert far(reader, right) == FarEnd(inode(left))
        assert far(reader, alone) is None


US, THEM, SOMEWHERE = "0100007F:9C40", "0100007F:1538", "0A00000A:1538"  # port 0x1538 is 5432
TABLE = f"""
   0: 00000000:1538 00000000:0000 0A 0:0 00:0 0 0 0 77 1
   1: {US} {THEM} 02 0:0 00:0 0 0 0 11 1
"""


@pytest.mark.skipif(sys.byteorder == "big", reason="written as a little-endian kernel has it")
def test_who_listens_is_believed_only_where_the_address_is_ours() -> None:
    """Our own server on the same port as one elsewhere is not accused."""

    def search(table: str, pattern: bytes) -> list[str]:
        found = re.search(pattern, TABLE.encode()) if table == "tcp" else None
        return found[0].decode().split() if found else []

    connecting, established = ["1:", US, THEM, "02"], ["1:", US, THEM, "01"]
    assert tcp_far_end(connecting, search) == FarEnd(77, listens=True)
    assert tcp_far_end(["1:", US, SOMEWHERE, "02"], search) is None
    assert tcp_far_end(established, search) is None
    assert tcp_far_end(["1:", SOMEWHERE, SOMEWHERE, "02"], search) == FarEnd(77, listens=True), "our own"


def inode(one: socket.socket) -> int:
    return os.fstat(one.fileno()).st_ino


def far(reader: DescriptorReader, one: socket.socket) -> FarEnd | None:
    found = reader.look(one.fileno())
    assert found is not None
    return reader.far_end(found)


def test_udp_and_unix(reader: DescriptorReader, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket(socket.AF_UNIX) as unix:
        udp.bind(("127.0.0.1", 0))
        unix.bind(path)
        unix.listen()
        assert text(reader, udp.fileno()) == f"udp {address(udp)}"
        assert text(reader, unix.fileno()) == f"unix {path} listening"


def test_a_socket_without_a_name(reader: DescriptorReader) -> None:
    left, right = socket.socketpair()
    with left, right:
        inode = os.fstat(left.fileno()).st_ino
        assert text(reader, left.fileno()) == f"unix socket {inode}"


def test_pipes_files_and_others(reader: DescriptorReader, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    inode = os.fstat(read_end).st_ino
    poller, event = select.epoll(), os.eventfd(0)
    poller.register(read_end)
    poller.register(event)
    with open(tmp_path / "file", "w", encoding="ascii") as file:
        assert reader.look(read_end) == Descriptor(read_end, "pipe", inode, "r", f"pipe {inode}, read end")
        assert reader.look(write_end) == Descriptor(write_end, "pipe", inode, "w", f"pipe {inode}, write end")
        assert reader.look(event) == Descriptor(event, "eventfd", 0, "rw", "eventfd")
        found = reader.look(poller.fileno())
        assert found == Descriptor(
            poller.fileno(), "epoll", 0, "rw", "2 fds", tuple(sorted((read_end, event)))
        )
        found = reader.look(file.fileno())
        assert found is not None
        assert (found.kind, found.mode, found.inode) == ("file", "w", os.fstat(file.fileno()).st_ino)
        assert found.text == str(tmp_path / "file")
    us = os.getpid()
    wanted = Wanted(inode)
    assert {*ends({f"pipe:[{inode}]": wanted})} >= {End(us, wanted, "r"), End(us, wanted, "w")}
    for fd in (read_end, write_end, event):
        os.close(fd)
    poller.close()
    assert reader.look(1 << 20) is None


# -- system calls


class Fake:
    """Memory and descriptors, made up."""

    def __init__(self, **memory: bytes) -> None:
        self._memory = {int(at[1:], 16): data for at, data in memory.items()}

    def descriptor(self, fd: int) -> Descriptor | None:
        return Descriptor(fd, "file", 1, "rw", f"file{fd}") if fd < 100 else None

    def read(self, address: int, size: int) -> bytes | None:
        data = self._memory.get(address, b"")
        return data[:size] if len(data) >= size else None

    def now(self, clock: int) -> float | None:
        return {0: 1000.0, 1: 50.0}.get(clock)


def call(name: str | None, *args: int, **memory: bytes) -> Call:
    return decode(Syscall(0, (*args, *[0] * (6 - len(args)))), name, Fake(**memory))


def test_socketcall_is_told_as_what_it_stands_for() -> None:
    arguments = pack("=6Q", 5, 0x1000, 10, 0, 0, 0)
    found = call("socketcall", 12, 0x5000, x5000=arguments)
    assert (found.name, found.words) == ("recvfrom", ("5 <file5>",))
    assert found.syscall.args == (5, 0x1000, 10, 0, 0, 0)
    assert call("socketcall", 10, 0x5000, x5000=arguments[:32]).name == "recvfrom"
    assert call("socketcall", 12, 0x6000, x5000=arguments).name == "socketcall", "it cannot be read"
    assert call("socketcall", 12, 0x5000, x5000=arguments[:40]).name == "socketcall"
    assert call("socketcall", 99, 0x5000, x5000=arguments).name == "socketcall"


def seconds(value: float) -> bytes:
    return pack("=qq", int(value), int(value % 1 * 1e9))


MINUS_ONE = (1 << 64) - 1


def test_descriptors_of_calls() -> None:
    assert call("read", 5, 0x1000, 10).words == ("5 <file5>",)
    assert call("read", 500).words == ("500",), "it is closed, or hidden"
    assert call("sendfile", 5, 6).words == ("5 <file5>", "6 <file6>")
    assert call("splice", 5, 0, 6).words == ("5 <file5>", "6 <file6>")
    polled = b"".join(pack("=ihh", fd, 1, 0) for fd in (3, -1, 4))
    done = call("poll", 0x10, 3, 5000, a10=polled)
    assert (done.words, done.asked_s) == (("3 <file3>", "4 <file4>"), 5.0)
    assert call("poll", 0x10, 3, MINUS_ONE, a10=polled).asked_s is None
    many = call("poll", 0x10, 70, 0, a10=pack("=ihh", 3, 1, 0) * 70)
    assert many.words[-1] == "6 more"
    chosen = call("select", 5, 0x10, 0x20, 0, 0x30, a10=pack("=Q", 0b01000), a20=pack("=Q", 0b10001),
                  a30=pack("=qq", 2, 500_000))  # fmt: skip
    assert ([d.fd for d in chosen.descriptors], chosen.asked_s) == ([0, 3, 4], 2.5)


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_a_set_of_descriptors_is_words_of_64_bits(byteorder: ByteOrder) -> None:
    chosen = {0, 3, 63, 64, 130}
    words = (sum(1 << fd % 64 for fd in chosen if fd // 64 == number) for number in range(3))
    assert {*members(b"".join(word.to_bytes(8, byteorder) for word in words), byteorder)} == chosen


def test_times_of_calls() -> None:
    assert call("nanosleep", 0x10, a10=seconds(2.5)).asked_s == 2.5
    relative = call("clock_nanosleep", 1, 0, 0x10, a10=seconds(7))
    assert (relative.asked_s, relative.left_s) == (7, None)
    both = Fake(a10=seconds(7), a20=seconds(5))
    for name, args in (("clock_nanosleep", (1, 0, 0x10, 0x20)), ("nanosleep", (0x10, 0x20))):
        again = Syscall(0, args, again=True)
        assert decode(again, name, both).asked_s == 5, "what was left when it was stopped"
        untold = again._replace(args=(*args[:-1], 0))
        assert decode(untold, name, both).asked_s is None
    absolute = call("clock_nanosleep", 1, 1, 0x10, a10=seconds(57))
    assert (absolute.asked_s, absolute.left_s) == (None, 7)
    assert call("futex", 0x99, 0x189, 0, 0x10, a10=seconds(1003)).left_s == 3, "an instant of the wall clock"
    assert call("futex", 0x99, 0x89, 0, 0x10, a10=seconds(52)).left_s == 2, "of the monotonic one"
    assert call("futex", 0x99, 0x80, 0, 0x10, a10=seconds(4)).asked_s == 4, "a length"
    assert call("futex", 0x99, 0x80).words == ("0x99", "wait")
    assert call("epoll_wait", 5, 0, 10, 100).asked_s == 0.1
    assert call("epoll_pwait2", 5, 0, 10, 0x10, a10=seconds(1)).asked_s == 1


def test_other_calls() -> None:
    assert call("wait4", MINUS_ONE & 0xFFFFFFFF).words == call("waitid", 0).words == ("any child",)
    assert call("wait4", 77).words == call("waitid", 1, 77).words == ("child 77",)
    assert call("openat", 0, 0xFF0, aFF0=b"/mnt/nfs/file\0".ljust(16)).words == ("/mnt/nfs/file",)
    assert call("openat", 0, 0xFF0).words == (), "not to be read"
    for name in (None, "brk", "no such call"):
        assert call(name, 1, 2).words == ()


def test_names_are_python_ptrace_s() -> None:
    """The table is read without its package, which takes long to import."""
    from sfsample.process.syscall_names import _names

    assert _names()[{"x86_64": 202, "aarch64": 98, "s390x": 238}[os.uname().machine]] == "futex"
    if os.uname().machine != "s390x":
        from ptrace.syscall import SYSCALL_NAMES

        assert _names() == SYSCALL_NAMES


# -- file locks

LOCKS = """\
1: FLOCK  ADVISORY  WRITE 812 00:19:1033 0 EOF
2: POSIX  ADVISORY  WRITE 900 08:01:77 0 EOF
2: -> POSIX  ADVISORY  WRITE 901 08:01:77 0 EOF
2: -> POSIX  ADVISORY  READ 902 08:01:77 10 20
3: OFDLCK ADVISORY  WRITE -1 08:01:78 0 EOF
3: -> OFDLCK ADVISORY  WRITE -1 08:01:78 0 EOF
4: LEASE  ACTIVE    READ 5 08:01:9 0 EOF
nonsense
"""


def test_locks_that_are_waited_for() -> None:
    assert parse_locks(LOCKS) == (
        FileLock(2, "POSIX", 77, 900, (901, 902)),
        FileLock(3, "OFDLCK", 78, -1, (-1,)),
    )
    assert parse_locks("") == ()


def test_a_lock_that_nobody_waits_for_is_not_told(tmp_path: Path) -> None:
    with (
        open(tmp_path / "lock", "w", encoding="ascii") as file,
        open("/proc/locks", encoding="ascii") as locks,
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        told = locks.read()
        assert f":{os.fstat(file.fileno()).st_ino} " in told or sys.platform != "linux"
        assert not [lock for lock in parse_locks(told) if lock.inode == os.fstat(file.fileno()).st_ino]
