"""The other end of a TCP connection, when that is on this machine, too.

Law: the other end is the socket with the same addresses the other way round, in the same network namespace.
While nobody has accepted the connection it is the socket that listens, and that is only believed where the
address is certainly ours.  Source: proc(5), "/proc/net/tcp": a connection that is not accepted has inode 0.
"""

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

_MAPPED = "0000000000000000" + ("FFFF0000" if sys.byteorder == "little" else "0000FFFF")  # ::ffff:0:0/96
_LOOPBACK_6 = "0" * 24 + ("01000000" if sys.byteorder == "little" else "00000001")  # ::1
_LOOPBACK_4 = "7F"  # 127.0.0.0/8
_CONNECTING = "02"
_INODE = 9

Search = Callable[[str, bytes], Sequence[str]]


class FarEnd(NamedTuple):
    """The socket at the other end; `listens`: it is the one that has not accepted the connection."""

    inode: int
    listens: bool = False


def tcp_far_end(fields: Sequence[str], search: Search) -> FarEnd | None:
    """Return the other end of the connection with this line; `search` finds lines in the tables."""
    local, remote, state = fields[1:4]
    found = _reverse(local, remote, search)
    if found and found[_INODE] != "0":
        return FarEnd(int(found[_INODE]))
    if found or (state == _CONNECTING and _is_ours(remote, local)):
        return _listener(remote, search)
    return None


def _reverse(local: str, remote: str, search: Search) -> Sequence[str]:
    for (table, there), (_, here) in zip(_forms(remote), _forms(local), strict=False):
        found = search(table, rb"\n[^\n]*: %s %s [^\n]*" % (there.encode(), here.encode()))
        if found:
            return found
    return ()


def _listener(address: str, search: Search) -> FarEnd | None:
    """Return who listens at an address, or at every address."""
    port = address.rpartition(":")[2]
    for table, place in (*_forms(address), ("tcp", f"{'0' * 8}:{port}"), ("tcp6", f"{'0' * 32}:{port}")):
        found = search(table, rb"\n[^\n]*: %s [0-9A-F]+:0000 0A [^\n]*" % place.encode())
        if found:
            return FarEnd(int(found[_INODE]), listens=True)
    return None


def _forms(address: str) -> list[tuple[str, str]]:
    """Return the tables in which an address may be, as it is written there: IPv4 is in tcp6 too, mapped."""
    short = address.removeprefix(_MAPPED)
    if len(short) == len("00000000:0000"):
        return [("tcp", short), ("tcp6", _MAPPED + short)]
    return [("tcp6", address)]


def _is_ours(remote: str, local: str) -> bool:
    """Whether a remote address is this machine's: a loopback one, or the one that we have ourselves."""
    there, here = (address.removeprefix(_MAPPED).partition(":")[0] for address in (remote, local))
    network = there[6:] if sys.byteorder == "little" else there[:2]
    return there in (here, _LOOPBACK_6) or (len(there) == 8 and network == _LOOPBACK_4)
