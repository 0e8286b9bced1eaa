"""Descriptors of this very process: what they refer to, and what is at the other end of pipes and sockets."""

import os
import re
import select
import socket
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.process.facts import descriptors
from sfsample.process.facts.descriptors import (
    Descriptor,
    DescriptorReader,
    KeptDescriptors,
    KeptPeers,
    KeptTables,
    NearEnd,
    PeerProcess,
    PeerSocket,
    tcp_peer,
)
from sfsample.process.procfs import ProcFs


@pytest.fixture
def reader() -> Iterator[DescriptorReader]:
    proc = ProcFs(os.getpid())
    yield DescriptorReader(proc)
    proc.close()


def text(reader: DescriptorReader, fd: int) -> str:
    descriptor = reader.read(fd)
    assert descriptor is not None
    return descriptor.text


def address(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def inode(sock: socket.socket) -> int:
    return os.fstat(sock.fileno()).st_ino


def peer(reader: DescriptorReader, sock: socket.socket) -> PeerSocket | None:
    descriptor = reader.read(sock.fileno())
    assert descriptor is not None
    return reader.sockets.peer(descriptor.inode)


# -- what a descriptor refers to


@pytest.mark.parametrize(("family", "host"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_tcp_text_has_addresses_and_state(
    reader: DescriptorReader, family: socket.AddressFamily, host: str
) -> None:
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


def test_udp_and_unix_text_has_address_or_path(reader: DescriptorReader, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket(socket.AF_UNIX) as unix:
        udp.bind(("127.0.0.1", 0))
        unix.bind(path)
        unix.listen()
        assert text(reader, udp.fileno()) == f"udp {address(udp)}"
        assert text(reader, unix.fileno()) == f"unix {path} listening"


def test_unnamed_unix_socket_text_has_inode(reader: DescriptorReader) -> None:
    left, right = socket.socketpair()
    with left, right:
        assert text(reader, left.fileno()) == f"unix socket {inode(left)}"


def test_pipes_files_epoll_and_eventfd_are_described(reader: DescriptorReader, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    inode = os.fstat(read_end).st_ino
    poller, event = select.epoll(), os.eventfd(0)
    poller.register(read_end)
    poller.register(event)
    with open(tmp_path / "file", "w", encoding="ascii") as file:
        assert reader.read(read_end) == Descriptor(read_end, "pipe", inode, "r", f"pipe {inode}, read end")
        assert reader.read(write_end) == Descriptor(write_end, "pipe", inode, "w", f"pipe {inode}, write end")
        assert reader.read(event) == Descriptor(event, "eventfd", 0, "rw", "eventfd")
        watched = tuple(sorted((read_end, event)))
        epoll = reader.read(poller.fileno())
        assert epoll == Descriptor(poller.fileno(), "epoll", 0, "rw", "2 fds", watched)
        descriptor = reader.read(file.fileno())
        assert descriptor is not None
        assert (descriptor.kind, descriptor.mode) == ("file", "w")
        assert descriptor.inode == os.fstat(file.fileno()).st_ino
        assert descriptor.text == str(tmp_path / "file")
    own, near = os.getpid(), NearEnd(inode)
    peers = {peer._replace(file="") for peer in KeptPeers().find({f"pipe:[{inode}]": near})}
    assert peers >= {PeerProcess(own, near, "r"), PeerProcess(own, near, "w")}
    for fd in (read_end, write_end, event):
        os.close(fd)
    poller.close()
    assert reader.read(1 << 20) is None


# -- the other end of a socket


@pytest.mark.parametrize(("there", "here"), [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("::", "127.0.0.1")])
def test_tcp_peer_is_found(reader: DescriptorReader, there: str, here: str) -> None:
    """Of IPv4, of IPv6, and of IPv4 to a server that accepts both."""
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    try:
        listener = socket.create_server((there, 0), family=family, dualstack_ipv6=there == "::")
    except OSError:
        pytest.skip(f"there is no {there} here")
    with listener, socket.create_connection((here, listener.getsockname()[1])) as client:
        assert peer(reader, client) == PeerSocket(inode(listener), listens=True), "not accepted yet"
        reader = DescriptorReader(reader._proc)
        served, _ = listener.accept()
        with served:
            assert peer(reader, client) == PeerSocket(inode(served))
            assert peer(reader, served) == PeerSocket(inode(client))
            assert peer(reader, listener) is None


def test_unix_peer_is_found(reader: DescriptorReader) -> None:
    left, right = socket.socketpair()
    with left, right, socket.socket(socket.AF_UNIX) as alone:
        assert peer(reader, left) == PeerSocket(inode(right))
        assert peer(reader, right) == PeerSocket(inode(left))
        assert peer(reader, alone) is None


CLIENT, SERVER, OTHER_MACHINE = "0100007F:9C40", "0100007F:1538", "0A00000A:1538"  # port 0x1538 is 5432
TABLE = f"""
   0: 00000000:1538 00000000:0000 0A 0:0 00:0 0 0 0 77 1
   1: {CLIENT} {SERVER} 02 0:0 00:0 0 0 0 11 1
"""


@pytest.mark.skipif(sys.byteorder == "big", reason="written as a little-endian kernel has it")
def test_listener_is_believed_only_for_addresses_of_this_machine() -> None:
    """A local server on the same port as a remote one is not named."""

    def search(table: str, pattern: bytes) -> list[str]:
        lines = TABLE.splitlines() if table == "tcp" else []
        return next((line.split() for line in lines if re.search(pattern, line.encode())), [])

    connecting, established = ["1:", CLIENT, SERVER, "02"], ["1:", CLIENT, SERVER, "01"]
    assert tcp_peer(connecting, search) == PeerSocket(77, listens=True)
    assert tcp_peer(["1:", CLIENT, OTHER_MACHINE, "02"], search) is None
    assert tcp_peer(established, search) is None
    own_address = ["1:", OTHER_MACHINE, OTHER_MACHINE, "02"]
    assert tcp_peer(own_address, search) == PeerSocket(77, listens=True)


# -- descriptors of a recording


def test_kept_descriptors_follow_a_number_that_is_used_again() -> None:
    kept = KeptDescriptors(ProcFs(os.getpid()), KeptTables())
    ends, others = os.pipe(), os.pipe()
    first, again, other = (kept.read(fd) for fd in (ends[0], ends[0], others[0]))
    assert first is again
    assert first is not None
    assert other is not None
    os.dup2(others[0], ends[0])
    assert kept.read(ends[0]) == other._replace(fd=ends[0]) != first
    for fd in (*ends, *others):
        os.close(fd)
    assert kept.read(ends[0]) is None
    with select.epoll() as epoll:
        assert kept.read(epoll.fileno()) == Descriptor(
            epoll.fileno(), "epoll", 0, "rw", "epoll", (epoll.fileno(),)
        )


def test_tables_of_sockets_are_read_seldom() -> None:
    kept = KeptDescriptors(ProcFs(os.getpid()), KeptTables())
    with socket.create_server(("127.0.0.1", 0)) as first, socket.socket() as second:
        assert text(kept, first.fileno()) == f"tcp {address(first)} listening"
        second.bind(("127.0.0.1", 0))
        second.listen()
        kept._tables.renew_ns = time.perf_counter_ns() + 10**12
        assert text(kept, second.fileno()) == f"socket {inode(second)}"
        kept._tables.renew_ns = 0
        assert text(kept, second.fileno()) == f"tcp {address(second)} listening"


def test_the_pause_between_tables_is_a_multiple_of_their_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full machine a read of 1 ms takes ten times as long."""
    clock, cpu = count(10**9, 10 * 10**6), count(0, 10**6)
    times = SimpleNamespace(perf_counter_ns=lambda: next(clock), thread_time_ns=lambda: next(cpu))
    monkeypatch.setattr(descriptors, "time", times)
    kept = KeptDescriptors(ProcFs(os.getpid()), KeptTables())
    with socket.socket() as any_socket:
        kept.read(any_socket.fileno())
    assert kept._tables.renew_ns == 10**9 + 50 * 10**6


def test_processes_of_one_network_namespace_share_the_tables_of_sockets() -> None:
    tables = KeptTables()
    first, second = (KeptDescriptors(ProcFs(os.getpid()), tables) for _ in range(2))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as later:
        assert text(first, server.fileno()) == f"tcp {address(server)} listening"
        tables.renew_ns = time.perf_counter_ns() + 10**12
        read = second._proc.read
        second._proc.read = lambda name: pytest.fail(name) if "net/" in name else read(name)  # type: ignore[assignment]
        assert text(second, later.fileno()) == f"tcp {address(later)} listening"


def test_a_file_is_looked_up_again_because_its_path_may_lead_to_another_file(tmp_path) -> None:
    kept, path = KeptDescriptors(ProcFs(os.getpid()), KeptTables()), tmp_path / "lock"
    inodes = []
    for name in ("old", "new"):
        (tmp_path / name).touch()
        (tmp_path / name).rename(path)
        with path.open() as file:
            found = kept.read(file.fileno())
            assert found is not None
            inodes.append((found.inode, os.fstat(file.fileno()).st_ino))
    assert all(seen == true for seen, true in inodes)
    assert inodes[0] != inodes[1]


def test_other_ends_are_searched_for_seldom_and_asked_again_each_time() -> None:
    (read_end, write_end), (other, another) = os.pipe(), os.pipe()
    links = {f"pipe:[{os.fstat(fd).st_ino}]": NearEnd(os.fstat(fd).st_ino) for fd in (read_end, other)}
    first, second = ({link: near} for link, near in links.items())
    peers, modes = KeptPeers(pause=1_000_000), lambda found: {(peer.pid, peer.mode) for peer in found}
    peers.want(second)
    both = {(os.getpid(), "r"), (os.getpid(), "w")}
    assert modes(peers.find(first)) == modes(peers.find(second)) == both, "one search finds both"
    os.close(write_end)
    assert modes(peers.find(first)) == {(os.getpid(), "r")}
    third = os.pipe()
    unknown = {f"pipe:[{os.fstat(third[0]).st_ino}]": NearEnd(os.fstat(third[0]).st_ino)}
    peers.want(unknown)
    assert not peers.find(unknown), "a search now would take too large a part of the time"
    assert peers.unsearched({**unknown, **first}) == unknown
    assert not peers.has_news(unknown)
    peers._next_ns = 0
    assert peers.has_news(unknown)
    assert modes(peers.find(unknown)) == both
    assert peers.has_news(unknown), "another thread that waits for this end asks after the search"
    assert modes(KeptPeers(pause=0).find(unknown)) == both
    for fd in (read_end, other, another, *third):
        os.close(fd)
