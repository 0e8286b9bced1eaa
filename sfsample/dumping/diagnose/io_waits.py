"""Finds what a thread waits for at a descriptor: a full pipe, an empty pipe, a socket, a connection, events.

What a dump says of a full pipe comes from here: "waits for room in pipe 12, which is full (fd 5)"; `wording`
adds "to be read by process 7 (x)".  The processes that have the other end are named when the thread waits for
one descriptor and sfsample may read them.
"""

from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait_types import ENDLESS_S, Wait, WaitContext
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import DecodedSyscall

_READ_CALLS = ("read", "readv", "pread64", "recvfrom", "recvmsg", "recvmmsg")
_WRITE_CALLS = ("write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice")
_ACCEPT_CALLS = ("accept", "accept4")
_EVENT_CALLS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6")
_RESOLVER_FUNCTIONS = ("res_nsend", "res_context_send", "res_nquery", "res_query", "res_nsearch",
                       "res_search", "libc_res_nsend", "getaddrinfo", "gethostbyname_r",
                       "gethostbyname2_r", "gethostbyaddr_r")  # fmt: skip


def io_wait_of(thread: NamedThread, call: DecodedSyscall, context: WaitContext) -> Wait | None:
    """Return what a call waits for that reads, writes, connects, accepts, or waits for events; else None."""
    if call.name in _EVENT_CALLS:
        return _name_resolution(thread, call) or _events(call, context)
    if call.name in (*_READ_CALLS, *_WRITE_CALLS, *_ACCEPT_CALLS, "connect"):
        return _transfer(thread, call, context)
    return None


def _transfer(thread: NamedThread, call: DecodedSyscall, context: WaitContext) -> Wait | None:
    if not call.descriptors:
        return None
    descriptor, name = call.descriptors[0], call.name or ""
    if name == "splice" and descriptor.kind != "pipe":
        descriptor = call.descriptors[-1]  # from a file or socket into a pipe
    if name == "connect":
        what = f"an answer to connect: {descriptor.text}"
        return Wait("connect", what, pids=_peers(descriptor, context, "rw"))
    if name in _ACCEPT_CALLS:
        return Wait("accept", f"a connection on {descriptor.text}", idle=True)
    if descriptor.kind == "pipe":
        # splice(2) reads from a pipe or writes to one: the end that is open says which
        return _pipe(descriptor, context, writes=name in _WRITE_CALLS and descriptor.mode != "r")
    if name in _READ_CALLS:
        data = Wait("read", f"data from {_text(descriptor)}", idle=descriptor.kind != "file")
        return _name_resolution(thread, call) or _with_peers(data, descriptor, context)
    return _with_peers(Wait("write", f"room to write to {_text(descriptor)}"), descriptor, context)


def _text(descriptor: Descriptor) -> str:
    return f"fd {descriptor.fd} ({descriptor.text})"


def _pipe(pipe: Descriptor, context: WaitContext, *, writes: bool) -> Wait:
    """Return the wait for a full pipe (writes) or an empty one, with the processes at the other end."""
    pids = _peers(pipe, context, "r" if writes else "w")
    if writes:
        return Wait("full pipe", f"room in pipe {pipe.inode}, which is full (fd {pipe.fd})", pids=pids)
    what = f"data in pipe {pipe.inode}, which is empty (fd {pipe.fd})"
    return Wait("empty pipe", what, pids=pids, idle=True)


def _with_peers(wait: Wait, descriptor: Descriptor, context: WaitContext) -> Wait:
    """Add the processes that have the other end of a socket, or of a pipe that poll or select watches."""
    mode = "rw" if descriptor.kind == "socket" else "w" if "r" in descriptor.mode else "r"
    pids = _peers(descriptor, context, mode)
    listens = any(p.near.listens for p in context.dump.peers if p.near.inode == descriptor.inode)
    note = "which listens there, and has not accepted the connection" if listens and pids else ""
    return wait._replace(pids=pids, note=note)


def _peers(descriptor: Descriptor, context: WaitContext, mode: str) -> tuple[int, ...]:
    """Return the pids of other processes that have the other end open in `mode`."""
    peers = (p for p in context.dump.peers if p.near.inode == descriptor.inode and mode in p.mode)
    return tuple(dict.fromkeys(peer.pid for peer in peers if peer.pid != context.dump.pid))


def _events(call: DecodedSyscall, context: WaitContext) -> Wait:
    timeout = call.timeout_s
    limit = f", at most {timeout:g} s" if timeout is not None and timeout < ENDLESS_S else ""
    if len(call.descriptors) == 1 and call.descriptors[0].kind != "epoll":
        descriptor = call.descriptors[0]
        wait = Wait("events", f"events on {_text(descriptor)}{limit}", idle=True)
        return _with_peers(wait, descriptor, context)
    is_epoll = (call.name or "").startswith("epoll") and call.descriptors
    count = len(call.descriptors[0].watches if is_epoll else call.descriptors)
    if not count:
        return Wait("sleep", limit.removeprefix(", ") or "without a limit", idle=True, verb="sleeps")
    return Wait("events", f"events on {count} fd{'s' * (count != 1)}{limit}", idle=True)


def _name_resolution(thread: NamedThread, call: DecodedSyscall) -> Wait | None:
    """Recognize the resolver by its functions on the stack, and the DNS server by the socket."""
    sockets = (d for d in call.descriptors if d.kind == "socket" and d.text.startswith(("udp", "tcp")))
    server = next(sockets, None)
    if server is None or not any(name in _RESOLVER_FUNCTIONS for name in thread.library_functions()):
        return None
    return Wait("name resolution", f"an answer from the DNS server: {server.text}")
