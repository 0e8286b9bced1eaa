"""Finds the socket at the other end of a TCP connection, if that is on this machine too.

That is the socket with the same two addresses in reverse, in the same network namespace.  Until a process has
accepted the connection, it is the listening socket.  sfsample believes that only where the remote address is
certainly this machine's: a server on the same port may run elsewhere.

Source: proc(5), "/proc/net/tcp": a connection that is not accepted has inode 0.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

_MAPPED = "0000000000000000" + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")  # ::ffff:0:0/96
_LOOPBACK_6 = "0" * 24 + ("01000000" if sys.byteorder == "little" else "00000001")  # ::1
_LOOPBACK_4 = "7F"  # 127.0.0.0/8
_CONNECTING = "02"  # TCP_SYN_SENT
_INODE = 9  # index of the inode among the fields of a line

SearchTable = Callable[
    [str, bytes], Sequence[str]
]  # (table, pattern) -> fields of the first line that matches


class PeerSocket(NamedTuple):
    """The socket at the other end; `listens`: it is the listening socket, the connection is not accepted."""

    inode: int
    listens: bool = False


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
