"""Looks up sockets of a process by inode: protocol, addresses and state as text, and the other end.

A table of /proc/PID/net is read when the first socket is looked up, and searched as bytes: a server's table
has hundreds of thousands of lines, and a dump needs a few.

The other end of a TCP connection is the socket with the same two addresses in reverse, in the same network
namespace.  Until a process has accepted the connection, it is the listening socket.  sfsample believes that
only where the remote address is certainly this machine's: a server on the same port may run elsewhere.

Source: proc(5), "/proc/net/tcp" (a connection that is not accepted has inode 0), "/proc/net/unix".
"""

import re
import sys
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from sfsample.process.procfs import ProcFs

_TCP_STATES = {"01": "established", "02": "connecting", "03": "syn received", "04": "fin wait 1",
               "05": "fin wait 2", "06": "time wait", "07": "closed", "08": "close wait", "09": "last ack",
               "0A": "listening", "0B": "closing"}  # fmt: skip
_SO_ACCEPTCON = 0x10000  # in the Flags column of the unix table: the socket listens
_MAPPED = "0000000000000000" + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")  # ::ffff:0:0/96
_LOOPBACK_6 = "0" * 24 + ("01000000" if sys.byteorder == "little" else "00000001")  # ::1
_LOOPBACK_4 = "7F"  # 127.0.0.0/8
_CONNECTING = "02"  # TCP_SYN_SENT
_INODE = 9  # index of the inode among the fields of a line

# (table, pattern) -> fields of the first line that matches
SearchTable = Callable[[str, bytes], Sequence[str]]


class PeerSocket(NamedTuple):
    """The socket at the other end; `listens`: it is the listening socket, the connection is not accepted."""

    inode: int
    listens: bool = False


class SocketTable:
    """The sockets of the network namespace of one process."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._tables: dict[str, bytes] = {}

    def text(self, inode: int) -> str:
        """Return protocol, addresses and state; "socket INODE" for a socket that is in no table."""
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            fields = self._internet(protocol, inode)
            if fields:
                return _internet_text(protocol, fields)
        pattern = rb"\n[^\n]* %d(?: [^\n]*)?(?=\n|$)" % inode
        fields = self._line("unix", pattern, lambda fields: fields[6:7] == [str(inode)])
        return _unix_text(fields) if fields else f"socket {inode}"

    def peer(self, inode: int) -> PeerSocket | None:
        """Return the socket at the other end; None: it is on another machine, or sfsample cannot see it."""
        fields = self._internet("tcp", inode) or self._internet("tcp6", inode)
        if fields:
            return tcp_peer(fields, self._line)
        from sfsample.process.facts.unix_peers import unix_peer_inode  # seldom needed

        peer = unix_peer_inode(self._proc, inode)
        return None if peer is None else PeerSocket(peer)

    def _internet(self, table: str, inode: int) -> list[str]:
        pattern = rb"\n[^\n]* %d [^\n]*" % inode
        return self._line(table, pattern, lambda fields: fields[9:10] == [str(inode)])

    def _line(
        self, table: str, pattern: bytes, accept: Callable[[list[str]], bool] = lambda fields: len(fields) > 9
    ) -> list[str]:
        """Return the fields of the first line that matches `pattern` and that `accept` takes; or none."""
        if table not in self._tables:
            self._tables[table] = self._proc.read(f"net/{table}") or b""
        for found in re.finditer(pattern, self._tables[table]):
            fields = found[0].decode("utf-8", "replace").split()
            if accept(fields):
                return fields
        return []


def _internet_text(protocol: str, fields: list[str]) -> str:
    local, remote, state = _address(fields[1]), _address(fields[2]), fields[3]
    words = [protocol, local]
    if not remote.endswith(":*"):
        words += ["->", remote]
    if protocol.startswith("tcp"):
        words.append(_TCP_STATES.get(state, state))
    return " ".join(words)


def _address(text: str) -> str:
    """Return "127.0.0.1:22" for "0100007F:0016": groups of four bytes, each in the machine's byte order."""
    address, _, port = text.partition(":")
    groups = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    raw = b"".join(group[::-1] if sys.byteorder == "little" else group for group in groups)
    number = int(port, 16) or "*"
    if len(raw) == 4:
        return f"{IPv4Address(raw)}:{number}"
    return f"[{IPv6Address(raw).ipv4_mapped or IPv6Address(raw)}]:{number}"


def _unix_text(fields: list[str]) -> str:
    words = ["unix"]
    words += fields[7:8]
    if int(fields[3], 16) & _SO_ACCEPTCON:
        words.append("listening")
    return " ".join(words) if len(words) > 1 else f"unix socket {fields[6]}"


def tcp_peer(fields: Sequence[str], search: SearchTable) -> PeerSocket | None:
    """Return the other end of a connection; `fields` are those of its line in the table."""
    local, remote, state = fields[1:4]
    reverse = _reverse_line(local, remote, search)
    if reverse and reverse[_INODE] != "0":
        return PeerSocket(int(reverse[_INODE]))
    if reverse or (state == _CONNECTING and _is_on_this_machine(remote, local)):
        return _listener(remote, search)
    return None


def _reverse_line(local: str, remote: str, search: SearchTable) -> Sequence[str]:
    for (table, there), (_, here) in zip(_spellings(remote), _spellings(local), strict=False):
        fields = search(table, rb"\n[^\n]*: %s %s [^\n]*" % (there.encode(), here.encode()))
        if fields:
            return fields
    return ()


def _listener(address: str, search: SearchTable) -> PeerSocket | None:
    """Return the socket that listens at an address, or at every address."""
    port = address.rpartition(":")[2]
    every_address = ("tcp", f"{'0' * 8}:{port}"), ("tcp6", f"{'0' * 32}:{port}")
    for table, text in (*_spellings(address), *every_address):
        fields = search(table, rb"\n[^\n]*: %s [0-9A-F]+:0000 0A [^\n]*" % text.encode())
        if fields:
            return PeerSocket(int(fields[_INODE]), listens=True)
    return None


def _spellings(address: str) -> list[tuple[str, str]]:
    """Return (table, address as written there): an IPv4 address is in tcp6 too, mapped into IPv6."""
    short = address.removeprefix(_MAPPED)
    if len(short) == len("00000000:0000"):
        return [("tcp", short), ("tcp6", _MAPPED + short)]
    return [("tcp6", address)]


def _is_on_this_machine(remote: str, local: str) -> bool:
    """Whether a remote address is this machine's: a loopback address, or the local address itself."""
    there, here = (address.removeprefix(_MAPPED).partition(":")[0] for address in (remote, local))
    network = there[6:] if sys.byteorder == "little" else there[:2]
    return there in (here, _LOOPBACK_6) or (len(there) == 8 and network == _LOOPBACK_4)
