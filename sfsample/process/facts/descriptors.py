"""Finds the file, pipe or socket of a descriptor of the target, and the processes at the other end.

sfsample reads /proc/PID/fd, fdinfo and net, and never opens the file of a descriptor.  Addresses belong to
the target's network namespace.  sfsample reads a table of /proc/PID/net when it looks up the first socket,
and searches the table as bytes: a server's table may have 100,000 lines, and a dump needs only a few lines.

The other end of a TCP connection is the socket with the same two addresses in reverse, in the same network
namespace.  Until a process has accepted the connection, the other end is the listening socket.  sfsample
names the listening socket only if the remote address certainly belongs to this machine.  The other end of a
unix socket is not in /proc; sfsample asks the kernel, as ss(8) does.

To find the processes at the other end, sfsample searches /proc/PID/fd of every process that it may read.
The search takes long on a large machine, so a dump searches only if a thread waits for a pipe or socket.

Source: proc(5), "/proc/net/tcp" (a connection that is not accepted has inode 0),
"/proc/net/unix"; the kernel's Documentation/filesystems/proc.rst (fdinfo); sock_diag(7), setns(2),
<linux/unix_diag.h>.
"""

import ctypes
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from struct import Struct
from typing import NamedTuple

from sfsample.core.foreign import total
from sfsample.errors import NoThread
from sfsample.process.proc_text import parse_status
from sfsample.process.procfs import ProcFs, looked_at, read_link, read_text
from sfsample.process.tracer_thread import TracerThread

_TABLE_PAUSE = 50  # pause after a table of sockets was read, in multiples of the reading's CPU time
_MAX_KNOWN = 10_000  # descriptors, and other ends of pipes and sockets, in the caches of a recording
_PEERS_LAST_NS = 5_000_000_000  # least time in ns between two searches for the same other ends
_LINK = re.compile(r"(pipe|socket):\[(\d+)\]")
_ACCESS_MODES = {"0": "r", "1": "w", "2": "rw"}  # O_RDONLY, O_WRONLY, O_RDWR: the last octal digit
_TCP_STATES = {"01": "established", "02": "connecting", "03": "syn received", "04": "fin wait 1",
               "05": "fin wait 2", "06": "time wait", "07": "closed", "08": "close wait", "09": "last ack",
               "0A": "listening", "0B": "closing"}  # fmt: skip
_SO_ACCEPTCON = 0x10000  # flag of a listening socket, in the Flags column of the unix table
_MAPPED = "0000000000000000" + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")  # ::ffff:0:0/96
_LOOPBACK_6 = "0" * 24 + ("01000000" if sys.byteorder == "little" else "00000001")  # ::1
_LOOPBACK_4 = "7F"  # 127.0.0.0/8
_CONNECTING = "02"  # TCP_SYN_SENT
_INODE, _UNIX_INODE = 9, 6  # indexes of the field with the inode: in most tables, and in the unix table
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_CLONE_NEWNET = 0x40000000
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_ANY = 0xFFFFFFFF  # mask of every state; also the value for "no cookie"
_MAX_ANSWER_BYTES = 4096
_HEADER = Struct("=IHHII")  # struct nlmsghdr
_REQUEST = Struct("=BBHIIIII")  # struct unix_diag_req
_ATTRIBUTE = Struct("=HH")  # struct nlattr
_UNIX_DIAG_MSG_BYTES = 16  # struct unix_diag_msg, between the header and the attributes

# (table, pattern) -> fields of the first line whose end matches
SearchTable = Callable[[str, bytes], Sequence[str]]


def access_mode(fdinfo: str) -> str:
    """Return "r", "w" or "rw", from the flags in a text of fdinfo; "": unknown."""
    return _ACCESS_MODES.get(parse_status(fdinfo).get("flags", "")[-1:], "")


class Descriptor(NamedTuple):
    """The file or other object to which a descriptor refers."""

    fd: int
    kind: str  # "pipe", "socket", "epoll", "file", "eventfd", ...
    inode: int
    mode: str  # see `access_mode`
    text: str  # "tcp 10.0.0.1:5 -> 10.0.0.2:80 established"; a file name may have control characters
    watches: tuple[int, ...] = ()  # descriptors that an epoll waits for


class DescriptorReader:
    """Reads each descriptor of one process once: a moment later, the number may refer to another file."""

    def __init__(self, proc: ProcFs, tables: dict[tuple[str, str], bytes] | None = None) -> None:
        """`tables`: see `SocketTable`."""
        self._proc = proc
        self.sockets = SocketTable(proc, tables)
        self.read: Callable[[int], Descriptor | None] = cache(self._read)

    def _read(self, fd: int) -> Descriptor | None:
        """Return the object of a descriptor; None: the descriptor is closed, or sfsample may not read it."""
        link = self._proc.link(f"fd/{fd}")
        if link is None:
            return None
        info = (self._proc.read(f"fdinfo/{fd}") or b"").decode("ascii", "replace")
        mode = access_mode(info)
        found = _LINK.fullmatch(link)
        if found and found[1] == "pipe":
            end = {"r": ", read end", "w": ", write end"}.get(mode, "")
            return Descriptor(fd, "pipe", int(found[2]), mode, f"pipe {found[2]}{end}")
        if found:
            return Descriptor(fd, "socket", int(found[2]), mode, self.sockets.text(int(found[2])))
        if not link.startswith("anon_inode:"):
            return Descriptor(fd, "file", int(parse_status(info).get("ino", "0")), mode, link)
        name = link.partition(":")[2].strip("[]")
        if name != "eventpoll":
            return Descriptor(fd, name, 0, "rw", name)
        watched = sorted(int(line.split()[1]) for line in info.splitlines() if line.startswith("tfd:"))
        text = f"{len(watched)} fd{'s' * (len(watched) != 1)}"
        return Descriptor(fd, "epoll", 0, "rw", text, tuple(watched))


class KeptTables(dict[tuple[str, str], bytes]):
    """Tables of sockets by network namespace and name, which the processes of a recording share."""

    renew_ns = 0  # time from which on tables may be read again (perf_counter_ns)


class KeptDescriptors(DescriptorReader):
    """Reads descriptors again and again, for a recording.  A pipe or socket is looked up once, by its inode.

    A file is looked up each time, because another file may get its path.  Descriptors that an epoll watches
    are not read.  Work with `tables` takes at most 2 % of a CPU.
    """

    def __init__(self, proc: ProcFs, tables: KeptTables) -> None:
        super().__init__(proc, tables)
        self.read, self._tables = self._read_again, tables
        self._known: dict[tuple[int, str], Descriptor] = {}

    def _read_again(self, fd: int) -> Descriptor | None:
        link = self._proc.link(f"fd/{fd}")
        if link == "anon_inode:[eventpoll]":
            return Descriptor(fd, "epoll", 0, "rw", "epoll", (fd,))
        if link is None or (fd, link) in self._known:
            return self._known.get((fd, link or ""))
        found = self._read_socket(fd) if link.startswith("socket:") else self._read(fd)
        if found is not None and found.kind != "file" and not found.text.startswith("socket "):
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[fd, link] = found
        return found

    def _read_socket(self, fd: int) -> Descriptor | None:
        now_ns, cpu_ns, tables = time.perf_counter_ns(), time.thread_time_ns(), self._tables
        if now_ns >= tables.renew_ns:
            tables.clear()
        self.sockets = SocketTable(self._proc, tables)  # forgets the peers, which may be in newer tables
        found = self._read(fd)
        tables.renew_ns = max(tables.renew_ns, now_ns) + _TABLE_PAUSE * (time.thread_time_ns() - cpu_ns)
        return found


# -- sockets


class PeerSocket(NamedTuple):
    """The socket at the other end of a connection."""

    inode: int
    listens: bool = False  # True: the listening socket, as no process has accepted the connection yet


class SocketTable:
    """The sockets of the network namespace of one process."""

    def __init__(self, proc: ProcFs, tables: dict[tuple[str, str], bytes] | None = None) -> None:
        """`tables`: content by network namespace and name, to which `text` and `peer` add."""
        self._proc, self._tables = proc, {} if tables is None else tables
        self.peer: Callable[[int], PeerSocket | None] = cache(self._peer)

    def text(self, inode: int) -> str:
        """Return protocol, addresses and state of a socket; "socket INODE" if the socket is in no table."""
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            if fields := self._line_of(inode, protocol):
                return _internet_text(protocol, fields)
        fields = self._line_of(inode, "unix", _UNIX_INODE)
        return total(_unix_text)(fields) or f"socket {inode}"  # a path with newlines spoils the fields

    def _peer(self, inode: int) -> PeerSocket | None:
        """Return the socket at the other end; None: on another machine, or invisible to sfsample."""
        if fields := self._line_of(inode, "tcp") or self._line_of(inode, "tcp6"):
            return tcp_peer(fields, self._line)
        peer = _unix_peer_inode(self._proc, inode)
        return None if peer is None else PeerSocket(peer)

    def _line_of(self, inode: int, table: str, column: int = _INODE) -> list[str]:
        return self._line(table, rb" %d\b[^\n]*" % inode, column, str(inode))

    def _line(self, table: str, pattern: bytes, column: int = _INODE, inode: str = "") -> list[str]:
        """Return the fields of the first line with `inode` in `column` whose end matches; []: no such line.

        A search for the end of a line is ten times as fast as a search for the line.
        """
        key = self._proc.link("ns/net") or str(self._proc.pid), table
        if key not in self._tables:
            self._tables[key] = self._proc.read(f"net/{table}") or b""
        text = self._tables[key]
        for found in re.finditer(pattern, text):
            line = text[text.rfind(b"\n", 0, found.start()) + 1 : found.end()]
            fields = line.decode("utf-8", "replace").split()
            if len(fields) > column and inode in ("", fields[column]):
                return fields
        return []


def _internet_text(protocol: str, fields: list[str]) -> str:
    local, remote = _address(fields[1]), _address(fields[2])
    there = "" if remote.endswith(":*") else f" -> {remote}"
    state = f" {_TCP_STATES.get(fields[3], fields[3])}" if protocol.startswith("tcp") else ""
    return f"{protocol} {local}{there}{state}"


def _address(text: str) -> str:
    """Return "127.0.0.1:22" for "0100007F:0016": groups of four bytes, each in the machine's byte order."""
    from ipaddress import IPv4Address, IPv6Address  # a module that few dumps need

    address, _, port = text.partition(":")
    groups = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    raw = b"".join(group[::-1] if sys.byteorder == "little" else group for group in groups)
    number = int(port, 16) or "*"
    if len(raw) == 4:
        return f"{IPv4Address(raw)}:{number}"
    return f"[{IPv6Address(raw).ipv4_mapped or IPv6Address(raw)}]:{number}"


def _unix_text(fields: list[str]) -> str:
    words = ["unix", *fields[7:8]]
    if int(fields[3], 16) & _SO_ACCEPTCON:
        words.append("listening")
    return " ".join(words) if len(words) > 1 else f"unix socket {fields[_UNIX_INODE]}"


def tcp_peer(fields: Sequence[str], search: SearchTable) -> PeerSocket | None:
    """Return the other end of a connection; `fields`: the connection's line in /proc/net/tcp."""
    local, remote, state = fields[1:4]
    for (table, there), (_, here) in zip(_spellings(remote), _spellings(local), strict=False):
        if reverse := search(table, rb": %s %s [^\n]*" % (there.encode(), here.encode())):
            is_accepted = reverse[_INODE] != "0"
            return PeerSocket(int(reverse[_INODE])) if is_accepted else _listener(remote, search)
    is_begun = state == _CONNECTING and _is_on_this_machine(remote, local)
    return _listener(remote, search) if is_begun else None


def _listener(address: str, search: SearchTable) -> PeerSocket | None:
    """Return the socket that listens at an address, or at every address."""
    port = address.rpartition(":")[2]
    every_address = ("tcp", f"{'0' * 8}:{port}"), ("tcp6", f"{'0' * 32}:{port}")
    for table, text in (*_spellings(address), *every_address):
        if fields := search(table, rb": %s [0-9A-F]+:0000 0A [^\n]*" % text.encode()):
            return PeerSocket(int(fields[_INODE]), listens=True)
    return None


def _spellings(address: str) -> list[tuple[str, str]]:
    """Return pairs: a table, and the address as written in this table; tcp6 also has IPv4 addresses."""
    short = address.removeprefix(_MAPPED)
    if len(short) == len("00000000:0000"):
        return [("tcp", short), ("tcp6", _MAPPED + short)]
    return [("tcp6", address)]


def _is_on_this_machine(remote: str, local: str) -> bool:
    """Return True if a remote address is a loopback address, or the local address itself."""
    there, here = (address.removeprefix(_MAPPED).partition(":")[0] for address in (remote, local))
    network = there[6:] if sys.byteorder == "little" else there[:2]
    return there in (here, _LOOPBACK_6) or (len(there) == 8 and network == _LOOPBACK_4)


# -- unix sockets


def _unix_peer_inode(proc: ProcFs, inode: int) -> int | None:
    """Return the inode of the socket at the other end; None: no such socket, or sfsample may not ask."""
    try:
        is_in_own_namespace = proc.link("ns/net") in (None, os.readlink("/proc/self/ns/net"))
        # a socket belongs to the network namespace of the thread that creates it
        netlink = _netlink_socket() if is_in_own_namespace else TracerThread(
            lambda _: _netlink_socket_in(proc.pid), lambda: False).run()  # fmt: skip
        body = _REQUEST.pack(socket.AF_UNIX, 0, 0, _ANY, inode, _UDIAG_SHOW_PEER, _ANY, _ANY)
        size = _HEADER.size + len(body)
        with netlink:
            netlink.send(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
            return _peer_in_answer(netlink.recv(_MAX_ANSWER_BYTES))
    except (OSError, NoThread):
        return None


def _netlink_socket_in(pid: int) -> socket.socket:
    """Move the calling OS thread into the network namespace of a process, and open a socket there."""
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        if ctypes.CDLL(None).setns(namespace.fileno(), _CLONE_NEWNET):
            raise PermissionError  # setns(2) needs CAP_SYS_ADMIN
    return _netlink_socket()


def _netlink_socket() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    netlink.setblocking(False)  # the kernel has answered when `send` returns
    return netlink


def _peer_in_answer(answer: bytes) -> int | None:
    """Return the inode in the attribute UNIX_DIAG_PEER; None: no such attribute, inode 0, or an error."""
    size, kind, *_ = _HEADER.unpack_from(answer)
    at = _HEADER.size + _UNIX_DIAG_MSG_BYTES
    while kind == _SOCK_DIAG_BY_FAMILY and at + _ATTRIBUTE.size <= min(size, len(answer)):
        length, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if attribute == _UNIX_DIAG_PEER:
            return int.from_bytes(answer[at + _ATTRIBUTE.size : at + length], sys.byteorder) or None
        at += max(length + 3 & -4, _ATTRIBUTE.size)
    return None


# -- processes


class NearEnd(NamedTuple):
    """The pipe or socket for which a thread waits, by inode."""

    inode: int
    listens: bool = False  # True: no process at the other end has accepted the connection yet


class PeerProcess(NamedTuple):
    """Process `pid` has the other end of `near` open, to read ("r"), to write ("w") or both ("rw")."""

    pid: int
    near: NearEnd
    mode: str
    file: str = ""  # file of /proc/PID/fd


def _peers_of(links: Mapping[str, NearEnd]) -> Iterator[PeerProcess]:
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        for fd in looked_at(partial(os.listdir, f"/proc/{pid}/fd")) or ():
            file = f"/proc/{pid}/fd/{fd}"
            if near := links.get(read_link(file) or ""):
                yield PeerProcess(pid, near, access_mode(read_text(f"/proc/{pid}/fdinfo/{fd}")), file)


class KeptPeers:
    """Searches for other ends again and again, for a recording; the default takes at most 2 % of a CPU.

    `pause`: time between two searches, in multiples of the CPU time of a search.
    A key of `links` is the other end as /proc/PID/fd shows it: "pipe:[12]", "socket:[34]".
    """

    def __init__(self, pause: int = _TABLE_PAUSE) -> None:
        self._pause = pause
        self._wanted: dict[str, NearEnd] = {}  # other ends to find in the next search
        self._searched: dict[str, NearEnd] = {}
        self._found: dict[NearEnd, list[PeerProcess]] = {}
        self._next_ns = 0  # time from which on the next search is permitted (perf_counter_ns)

    def unsearched(self, links: Mapping[str, NearEnd]) -> dict[str, NearEnd]:
        """Return the other ends that the last search did not include."""
        return dict(links.items() - self._searched.items())

    def has_news(self, unsearched: Mapping[str, NearEnd]) -> bool:
        """Return True if `find` knows these ends by now, or may search for them."""
        return not self.unsearched(unsearched) or time.perf_counter_ns() >= self._next_ns

    def want(self, links: Mapping[str, NearEnd]) -> None:
        """Search for these other ends, too, at the next search."""
        self._wanted |= links

    def find(self, links: Mapping[str, NearEnd]) -> tuple[PeerProcess, ...]:
        """Return the processes that still have a file of `links` open; (): none, or no search yet."""
        now_ns, is_known = time.perf_counter_ns(), self._searched.items() >= links.items()
        if links and now_ns >= self._next_ns + _PEERS_LAST_NS * is_known:
            used_ns, self._searched = time.thread_time_ns(), {**self._wanted, **links}
            self._found = {}
            for peer in _peers_of(self._searched):
                self._found.setdefault(peer.near, []).append(peer)
            self._wanted = dict(self._searched) if len(self._searched) < _MAX_KNOWN else {}
            self._next_ns = now_ns + self._pause * (time.thread_time_ns() - used_ns)
        found = chain.from_iterable(self._found.get(near, ()) for near in links.values())
        return tuple(peer for peer in found if read_link(peer.file) in links)
