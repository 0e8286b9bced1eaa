"""What a thread waits for at a descriptor, and who is at the other end.

Law: as `waits`'.  The other end is told when it is one descriptor that is waited for, and known who has it.
"""

from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait import ENDLESS_S, Scene, Wait
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import Call

_READS = ("read", "readv", "pread64", "recvfrom", "recvmsg", "recvmmsg")
_WRITES = ("write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "sendfile", "splice")
_ACCEPTS = ("accept", "accept4")
_EVENTS = ("epoll_wait", "epoll_pwait", "epoll_pwait2", "poll", "ppoll", "select", "pselect6")
_RESOLVER = ("res_nsend", "res_context_send", "res_nquery", "res_query", "res_nsearch", "res_search",
             "libc_res_nsend", "getaddrinfo", "gethostbyname_r", "gethostbyname2_r",
             "gethostbyaddr_r")  # fmt: skip


def at_descriptor(thread: NamedThread, call: Call, scene: Scene) -> Wait | None:
    """Return what a call waits for that reads, writes, connects, accepts, or waits for events."""
    if call.name in _EVENTS:
        return _resolving(thread, call) or _events(call, scene)
    if call.name in (*_READS, *_WRITES, *_ACCEPTS, "connect"):
        return _transfer(thread, call, scene)
    return None


def _transfer(thread: NamedThread, call: Call, scene: Scene) -> Wait | None:
    if not call.descriptors:
        return None
    found, name = call.descriptors[0], call.name or ""
    if name == "connect":
        return Wait("connect", f"an answer to connect: {found.text}", pids=_others(found, scene, "rw"))
    if name in _ACCEPTS:
        return Wait("accept", f"a connection on {found.text}", idle=True)
    if found.kind == "pipe":
        return _pipe(found, scene, writes=name in _WRITES)
    if name in _READS:
        data = Wait("read", f"data from {_where(found)}", idle=found.kind != "file")
        return _resolving(thread, call) or _with_peer(data, found, scene)
    return _with_peer(Wait("write", f"room to write to {_where(found)}"), found, scene)


def _where(found: Descriptor) -> str:
    return f"fd {found.fd} ({found.text})"


def _pipe(found: Descriptor, scene: Scene, *, writes: bool) -> Wait:
    """Name the processes at the other end."""
    others = _others(found, scene, "r" if writes else "w")
    if writes:
        return Wait("full pipe", f"room in pipe {found.inode}, which is full (fd {found.fd})", pids=others)
    return Wait("empty pipe", f"data in pipe {found.inode}, which is empty (fd {found.fd})", pids=others,
                idle=True)  # fmt: skip


def _with_peer(wait: Wait, found: Descriptor, scene: Scene) -> Wait:
    """Add the processes that have the other end of a socket, or of a pipe that is watched."""
    mode = "rw" if found.kind == "socket" else "w" if "r" in found.mode else "r"
    pids = _others(found, scene, mode)
    listens = any(end.of.listens for end in scene.dump.ends if end.of.inode == found.inode)
    note = "which listens there, and has not accepted the connection" if listens and pids else ""
    return wait._replace(pids=pids, note=note)


def _others(found: Descriptor, scene: Scene, mode: str) -> tuple[int, ...]:
    ends = (end for end in scene.dump.ends if end.of.inode == found.inode and mode in end.mode)
    return tuple(dict.fromkeys(end.pid for end in ends if end.pid != scene.dump.pid))


def _events(call: Call, scene: Scene) -> Wait:
    limit = f", at most {call.asked_s:g} s" if call.asked_s is not None and call.asked_s < ENDLESS_S else ""
    if len(call.descriptors) == 1 and call.descriptors[0].kind != "epoll":
        one = call.descriptors[0]
        return _with_peer(Wait("events", f"events on {_where(one)}{limit}", idle=True), one, scene)
    count = (
        len(call.descriptors[0].watches)
        if call.name and call.name.startswith("epoll") and call.descriptors
        else len(call.descriptors)
    )
    if not count:
        return Wait("sleep", limit.removeprefix(", ") or "without a limit", idle=True, verb="sleeps")
    return Wait("events", f"events on {count} fd{'s' * (count != 1)}{limit}", idle=True)


def _resolving(thread: NamedThread, call: Call) -> Wait | None:
    """Recognise the resolver by its functions, and its server by the socket."""
    udp = next(
        (d for d in call.descriptors if d.kind == "socket" and d.text.startswith(("udp", "tcp"))), None
    )
    if udp is None or not any(name in _RESOLVER for name in thread.library_functions()):
        return None
    return Wait("name resolution", f"an answer from the DNS server: {udp.text}")
