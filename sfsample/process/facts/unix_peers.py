"""The other end of a unix socket: what /proc does not tell, and ss(8) shows.

Law: asks the kernel about single sockets, in the network namespace of the process that has them; disturbs
nobody.  None: it has no other end, or we may not ask.  Source: sock_diag(7), <linux/unix_diag.h>, setns(2).
"""

import ctypes
import os
import sys
from struct import Struct
from typing import TYPE_CHECKING

from sfsample.process.procfs import ProcFs
from sfsample.process.tracer_thread import TracerThread

if TYPE_CHECKING:
    import socket

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_CLONE_NEWNET = 0x40000000
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_AF_UNIX = 1
_ANY = 0xFFFFFFFF
_HEADER, _REQUEST = Struct("=IHHII"), Struct("=BBHIIIII")
_ATTRIBUTE, _ANSWER = Struct("=HH"), 16  # after the header comes struct unix_diag_msg


def unix_far_inode(proc: ProcFs, inode: int) -> int | None:
    """Return the inode of the socket at the other end of one that a process has."""
    try:
        netlink = _open_netlink(proc)
        if netlink is None:
            return None
        with netlink:
            netlink.send(_request(inode))
            return _peer(netlink.recv(4096))
    except OSError:
        return None


def _open_netlink(proc: ProcFs) -> "socket.socket | None":
    """Open it where the process lives: a socket belongs to the namespace of the thread that makes it."""
    if proc.link("ns/net") in (None, os.readlink("/proc/self/ns/net")):
        return _socket()
    return TracerThread(lambda _: _socket() if _enter(proc) else None, lambda: False).run()


def _enter(proc: ProcFs) -> bool:
    """Move this OS thread, which ends at once, into the namespace; needs CAP_SYS_ADMIN."""
    fd = os.open(f"/proc/{proc.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return bool(ctypes.CDLL(None).setns(fd, _CLONE_NEWNET) == 0)
    finally:
        os.close(fd)


def _socket() -> "socket.socket":
    import socket

    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    made.setblocking(False)  # the kernel has answered when `send` returns
    return made


def _request(inode: int) -> bytes:
    body = _REQUEST.pack(_AF_UNIX, 0, 0, _ANY, inode, _UDIAG_SHOW_PEER, _ANY, _ANY)
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body


def _peer(answer: bytes) -> int | None:
    """Find UNIX_DIAG_PEER among the attributes; there are none in an error."""
    size, kind, *_ = _HEADER.unpack_from(answer)
    at = _HEADER.size + _ANSWER
    while kind == _SOCK_DIAG_BY_FAMILY and at + _ATTRIBUTE.size <= min(size, len(answer)):
        length, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if attribute == _UNIX_DIAG_PEER:
            return int.from_bytes(answer[at + _ATTRIBUTE.size : at + length], sys.byteorder) or None
        at += max(length + 3 & -4, _ATTRIBUTE.size)
    return None
