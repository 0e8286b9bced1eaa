"""Finds the socket at the other end of a unix socket, which /proc does not show and ss(8) does.

Asks the kernel about single sockets, in the network namespace of the process that has them.
Source: sock_diag(7), <linux/unix_diag.h>, setns(2).
"""

import ctypes
import os
import socket
import sys
from struct import Struct

from sfsample.process.procfs import ProcFs
from sfsample.process.tracer_thread import TracerThread

_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
_CLONE_NEWNET = 0x40000000
_UDIAG_SHOW_PEER, _UNIX_DIAG_PEER = 4, 2
_AF_UNIX = 1
_ANY = 0xFFFFFFFF  # every state; no cookie
_MAX_ANSWER_BYTES = 4096
_HEADER = Struct("=IHHII")  # struct nlmsghdr
_REQUEST = Struct("=BBHIIIII")  # struct unix_diag_req
_ATTRIBUTE = Struct("=HH")  # struct nlattr
_UNIX_DIAG_MSG_BYTES = 16  # struct unix_diag_msg, between the header and the attributes


def unix_peer_inode(proc: ProcFs, inode: int) -> int | None:
    """Return the inode of the other end of a socket; None: it has none, or sfsample may not ask."""
    try:
        netlink = _open_netlink(proc)
        if netlink is None:
            return None
        with netlink:
            netlink.send(_request(inode))
            return _peer(netlink.recv(_MAX_ANSWER_BYTES))
    except OSError:
        return None


def _open_netlink(proc: ProcFs) -> socket.socket | None:
    """Open a netlink socket in the target's network namespace.

    A socket belongs to the namespace of the thread that creates it, so a short-lived thread enters it.
    """
    if proc.link("ns/net") in (None, os.readlink("/proc/self/ns/net")):
        return _netlink_socket()
    return TracerThread(lambda _: _netlink_socket() if _enter(proc) else None, lambda: False).run()


def _enter(proc: ProcFs) -> bool:
    """Move the calling OS thread into the target's network namespace; needs CAP_SYS_ADMIN."""
    fd = os.open(f"/proc/{proc.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return bool(ctypes.CDLL(None).setns(fd, _CLONE_NEWNET) == 0)
    finally:
        os.close(fd)


def _netlink_socket() -> socket.socket:
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG)
    netlink.setblocking(False)  # the kernel has answered when `send` returns
    return netlink


def _request(inode: int) -> bytes:
    body = _REQUEST.pack(_AF_UNIX, 0, 0, _ANY, inode, _UDIAG_SHOW_PEER, _ANY, _ANY)
    return _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body


def _peer(answer: bytes) -> int | None:
    """Return the inode in UNIX_DIAG_PEER; an error message has no attributes."""
    size, kind, *_ = _HEADER.unpack_from(answer)
    at = _HEADER.size + _UNIX_DIAG_MSG_BYTES
    while kind == _SOCK_DIAG_BY_FAMILY and at + _ATTRIBUTE.size <= min(size, len(answer)):
        length, attribute = _ATTRIBUTE.unpack_from(answer, at)
        if attribute == _UNIX_DIAG_PEER:
            return int.from_bytes(answer[at + _ATTRIBUTE.size : at + length], sys.byteorder) or None
        at += max(length + 3 & -4, _ATTRIBUTE.size)
    return None
