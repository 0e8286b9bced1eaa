"""Names the frame of a wait.  Equal waits have the same name for months, so a history has few names.

The name has the kind of the wait and a lasting object: the service of a socket, the directory of a file.
Addresses, descriptors, pids and counts would make new names in a history: only `details` adds such words.

This module also decides which threads are idle, that is, wait for work.  A recording folds idle threads.
"""

import re
import socket
from functools import lru_cache

from sfsample.core.wait_kind import CLASS_OF, WaitClass, WaitKind
from sfsample.modules.location import WaitPlace
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import FILE_LOCK_CALLS, DecodedSyscall
from sfsample.waiting.thread import WaitingThread, sleeps_on_gil
from sfsample.waiting.waits import IN_PIPE, Wait

NO_CPU = WaitPlace("runnable: no CPU", WaitClass.CPU)
_TEXTS = {WaitKind.CONDITION: "condition variable", WaitKind.THREAD: "join", WaitKind.GIL: "GIL",
          WaitKind.ONCE: "initialisation", WaitKind.DATABASE_LOCK: "PostgreSQL lock",
          WaitKind.VFORK: "vfork child"}  # fmt: skip
# kinds whose name needs no descriptor
_PLAIN = {*_TEXTS, WaitKind.MUTEX, WaitKind.READ_LOCK, WaitKind.WRITE_LOCK, WaitKind.SEMAPHORE,
          WaitKind.BARRIER, WaitKind.FUTEX, WaitKind.SLEEP, WaitKind.SIGNAL, WaitKind.CHILD,
          WaitKind.STOPPED, WaitKind.OPEN_FIFO}  # fmt: skip
_IDLE = (WaitKind.SLEEP, WaitKind.ACCEPT, WaitKind.EVENTS, WaitKind.QUEUE)
# (start of a goroutine's state, class of its wait); the first match counts
_STATES = (("sync.Mutex.", WaitClass.LOCK), ("sync.RWMutex.", WaitClass.LOCK), ("sync.", WaitClass.CONDITION),
           ("chan ", WaitClass.CONDITION), ("select", WaitClass.CONDITION), ("sleep", WaitClass.SLEEP),
           ("runnable", WaitClass.CPU), ("preempted", WaitClass.CPU), ("", WaitClass.OTHER))  # fmt: skip
_ADDRESS = re.compile(r" 0x[0-9a-f]+|: \d+ of \d+ have arrived")
_EPHEMERAL = 32768  # first port that the kernel gives to a client: ip(7), ip_local_port_range
_NO_DISKS = ("/dev/", "/proc/", "/sys/")  # directories of devices, and of files of the kernel
# starts of texts of descriptors; a connection that is not looked up yet is "socket INODE"
_WAKE_UP = re.compile("eventfd|timerfd|signalfd|pipe |unix socket ")
_CONNECTION = re.compile(r"socket |\w+ \S+ -> ")
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


def wait_place(thread: WaitingThread, wait: Wait | None, *, details: bool) -> WaitPlace:
    """Return the frame for the wait of a thread; `wait` is None if the kind of the wait is unknown."""
    text, category = _text_and_class(thread, wait)
    if details:
        text = _detailed(thread, wait, text)
    return WaitPlace(text, category, wait is not None and _is_idle(thread, wait))


def _is_idle(thread: WaitingThread, wait: Wait) -> bool:
    """Return True if the thread waits for work: see docs/waiting.md."""
    if wait.kind is WaitKind.EVENTS:
        descriptor = _only_descriptor(thread.call)
        return descriptor is None or descriptor.text.endswith(" listening")
    return wait.kind in _IDLE and wait.is_usual


def _text_and_class(thread: WaitingThread, wait: Wait | None) -> tuple[str, WaitClass]:
    call = thread.call
    if thread.gil is not None and sleeps_on_gil(thread.gil, call):
        return "GIL", WaitClass.GIL  # also for a thread that has just got the GIL
    if wait is not None and thread.facts.wait is not None and wait.kind is thread.facts.wait.kind:
        what, is_lock = _ADDRESS.sub("", thread.facts.wait.what), CLASS_OF[wait.kind] is WaitClass.LOCK
        return what if is_lock else f"{wait.kind}: {what}", CLASS_OF[wait.kind]
    if thread.functions[:1] == ("lll_lock_wait_private",):  # of malloc, stdio or the dynamic linker
        return "libc lock", WaitClass.LOCK
    if wait is not None and wait.kind in _PLAIN:
        return _TEXTS.get(wait.kind, str(wait.kind)), CLASS_OF.get(wait.kind, WaitClass.OTHER)
    if call is None:  # page fault: the thread is in no system call
        is_disk = thread.state == "D"
        return ("disk: page fault", WaitClass.DISK) if is_disk else ("unknown", WaitClass.OTHER)
    return _of_call(call, wait.kind if wait else None, thread)


def _of_call(call: DecodedSyscall, kind: WaitKind | None, thread: WaitingThread) -> tuple[str, WaitClass]:
    descriptor, name = _only_descriptor(call), call.name or f"system call {call.syscall.number}"
    if kind is WaitKind.NAME_RESOLUTION:
        return "DNS server", WaitClass.NETWORK
    if descriptor is None and kind is WaitKind.KERNEL and call.refers_to:  # a call with a path
        return f"disk: {name}", WaitClass.DISK
    if descriptor is None:
        return name, WaitClass.EVENT if kind is WaitKind.EVENTS else WaitClass.OTHER
    what, category = object_of(descriptor)
    is_no_disk, is_polled = descriptor.text.startswith(_NO_DISKS), kind is WaitKind.EVENTS
    if category is WaitClass.DISK and thread.state != "D" and (is_no_disk or is_polled):
        # poll(2) waits for no regular file, but for FIFOs, and for message queues, whose path is /NAME
        is_fifo = not is_no_disk and descriptor.text.count("/") > 1
        category = WaitClass.PIPE if is_fifo else WaitClass.EVENT
    if category is WaitClass.PIPE or IN_PIPE.search(thread.wchan or ""):
        what, category = "pipe", WaitClass.PIPE
    if call.name in FILE_LOCK_CALLS:  # also if the thread has got the lock before /proc/locks was read
        return f"file lock: {what}", WaitClass.LOCK
    return f"{'disk: ' * (category is WaitClass.DISK)}{name}: {what}", category


def _only_descriptor(call: DecodedSyscall | None) -> Descriptor | None:
    """Return the only descriptor that a thread waits for; None: none, several, or an epoll.

    A connection to a server counts as the only one if the other descriptors may only wake the thread up.
    """
    if call is None or not call.descriptors:
        return None
    first, *others = call.descriptors
    if call.name in ("splice", "sendfile", "copy_file_range", "tee"):
        return first
    left = [file for file in call.descriptors if not _WAKE_UP.match(file.text)]
    if others and len(left) == 1 and _CONNECTION.match(left[0].text):
        return None if _socket(left[0].text).startswith("client of") else left[0]
    return None if others or first.kind == "epoll" else first


def object_of(descriptor: Descriptor) -> tuple[str, WaitClass]:
    """Return a lasting name for the object of a descriptor, and the class of a wait for this object."""
    kind, text = descriptor.kind, descriptor.text
    if kind == "socket":
        return _socket(text), WaitClass.NETWORK
    if kind == "file" and text.startswith(_TERMINALS):
        return "terminal", WaitClass.OTHER
    if kind == "file":
        directory = text.rpartition("/")[0] or "/"
        return re.sub(r"\d+", "N", directory), WaitClass.DISK
    return re.sub(r"\d+", "N", kind), WaitClass.PIPE if kind == "pipe" else WaitClass.EVENT


def goroutine_place(state: str, descriptor: Descriptor | None) -> WaitPlace:
    """Return the frame of a parked goroutine; `descriptor`: the only descriptor of the wait."""
    if descriptor is not None:
        what, category = object_of(descriptor)
        return WaitPlace(f"{state}: {what}", category)
    return WaitPlace(state, next(category for start, category in _STATES if state.startswith(start)))


def _socket(text: str) -> str:
    """Return the name of a socket: "postgresql:5432", "client of http:80" or "unix /run/x.sock".

    The lower port of a connection belongs to the server: clients have high, ephemeral ports.
    """
    protocol, *words = text.split()
    if protocol == "unix":
        path = next((word for word in words if word[0] in "/@"), "")
        return f"unix {re.sub(r'[0-9]+', 'N', path)}".rstrip()
    ports = [int(port) for word in words if (port := word.rpartition(":")[2]).isdecimal() and ":" in word]
    if protocol == "socket":
        return "socket"
    if min(ports, default=_EPHEMERAL) >= _EPHEMERAL and words[-1:] != ["listening"]:
        return protocol[:3]  # either port may belong to the server
    if len(ports) > 1 and ports[0] < ports[1]:
        return f"client of {_service(ports[0], protocol[:3])}"
    return _service(ports[-1], protocol[:3])


@lru_cache(256)
def _service(port: int, protocol: str) -> str:
    try:
        return f"{socket.getservbyport(port, protocol)}:{port}"
    except OSError:
        return f"{protocol}:{port}"


def _detailed(thread: WaitingThread, wait: Wait | None, text: str) -> str:
    if wait is not None and wait.what:
        return f"{'sleep ' * (wait.kind is WaitKind.SLEEP)}{wait.what}"
    refers_to = thread.call.refers_to if thread.call else ()
    return f"{text} {', '.join(refers_to)}".rstrip()
