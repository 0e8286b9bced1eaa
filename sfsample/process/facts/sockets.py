"""Sockets by inode: their addresses, in words, and their other ends.

Law: a table of /proc/PID/net is read when the first socket is asked for, and searched as bytes: a server has
hundreds of thousands of lines in it, and we want a few.  Source: proc(5), "/proc/net/tcp", "/proc/net/unix".
"""

import re
import sys
from collections.abc import Callable

from sfsample.process.facts.tcp_peers import FarEnd, tcp_far_end
from sfsample.process.procfs import ProcFs

_STATES = {"01": "established", "02": "connecting", "03": "syn received", "04": "fin wait 1",
           "05": "fin wait 2", "06": "time wait", "07": "closed", "08": "close wait", "09": "last ack",
           "0A": "listening", "0B": "closing"}  # fmt: skip
_UNIX_LISTENS = 0x10000  # __SO_ACCEPTCON in the Flags column


class SocketTable:
    """The sockets of the network namespace of one process."""

    def __init__(self, proc: ProcFs) -> None:
        self._proc = proc
        self._tables: dict[str, bytes] = {}

    def text(self, inode: int) -> str:
        """Return protocol, addresses and state; "socket INODE" for one that no table has."""
        for protocol in ("tcp", "tcp6", "udp", "udp6"):
            line = self._internet(protocol, inode)
            if line:
                return _words(protocol, line)
        pattern = rb"\n[^\n]* %d(?: [^\n]*)?(?=\n|$)" % inode
        line = self._line("unix", pattern, lambda fields: fields[6:7] == [str(inode)])
        return _unix(line) if line else f"socket {inode}"

    def far_end(self, inode: int) -> FarEnd | None:
        """Return the socket at the other end; None: it is elsewhere, or hidden from us."""
        line = self._internet("tcp", inode) or self._internet("tcp6", inode)
        if line:
            return tcp_far_end(line, self._line)
        from sfsample.process.facts.unix_peers import unix_far_inode  # few threads wait at one

        peer = unix_far_inode(self._proc, inode)
        return None if peer is None else FarEnd(peer)

    def _internet(self, table: str, inode: int) -> list[str]:
        pattern = rb"\n[^\n]* %d [^\n]*" % inode
        return self._line(table, pattern, lambda fields: fields[9:10] == [str(inode)])

    def _line(
        self, table: str, pattern: bytes, right: Callable[[list[str]], bool] = lambda fields: len(fields) > 9
    ) -> list[str]:
        """Return the fields of the first line that a pattern finds and that is `right`."""
        if table not in self._tables:
            self._tables[table] = self._proc.read(f"net/{table}") or b""
        for found in re.finditer(pattern, self._tables[table]):
            fields = found[0].decode("utf-8", "replace").split()
            if right(fields):
                return fields
        return []


def _words(protocol: str, fields: list[str]) -> str:
    local, remote, state = _address(fields[1]), _address(fields[2]), fields[3]
    words = [protocol, local]
    if not remote.endswith(":*"):
        words += ["->", remote]
    if protocol.startswith("tcp"):
        words.append(_STATES.get(state, state))
    return " ".join(words)


def _address(text: str) -> str:
    """Turn "0100007F:0016" into "127.0.0.1:22": groups of four bytes, each in the machine's order."""
    address, _, port = text.partition(":")
    groups = [bytes.fromhex(address[at : at + 8]) for at in range(0, len(address), 8)]
    raw = b"".join(group[::-1] if sys.byteorder == "little" else group for group in groups)
    number = str(int(port, 16)) if int(port, 16) else "*"
    if len(raw) == 4:
        return f"{'.'.join(map(str, raw))}:{number}"
    return f"[{_ipv6(raw)}]:{number}"


def _ipv6(raw: bytes) -> str:
    import ipaddress

    address = ipaddress.IPv6Address(raw)
    return str(address.ipv4_mapped or address)


def _unix(fields: list[str]) -> str:
    words = ["unix"]
    words += fields[7:8]
    if int(fields[3], 16) & _UNIX_LISTENS:
        words.append("listening")
    return " ".join(words) if len(words) > 1 else f"unix socket {fields[6]}"
