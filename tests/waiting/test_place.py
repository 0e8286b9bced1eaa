"""The frame of a wait has a lasting name and a class."""

import pytest

from sfsample.core.wait_kind import CLASS_OF, WaitKind
from sfsample.modules.location import WaitPlace
from sfsample.process.facts.descriptors import Descriptor
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.runtimes.cpython.threads import Gil
from sfsample.runtimes.cpython.waits import PythonFacts, PythonWait
from sfsample.waiting.place import goroutine_place, object_of, wait_place
from sfsample.waiting.thread import WaitContext, WaitingThread
from sfsample.waiting.waits import wait_of
from tests.builders.hang_builder import WAIT, futex


def call(name: str, *descriptors: Descriptor, refers_to: tuple[str, ...] = ()) -> DecodedSyscall:
    return DecodedSyscall(SyscallInfo(0, (0,) * 6), name, refers_to, descriptors)


def place(state: str = "S", *, details: bool = False, **evidence: object) -> WaitPlace:
    thread = WaitingThread(1, "t", state)._replace(**evidence)
    return wait_place(thread, wait_of(thread, context(thread)), details=details)


def context(*threads: WaitingThread) -> WaitContext:
    return WaitContext(1, ["app"], threads, {1: 1}, {}, lambda _: None)


def socket(text: str) -> Descriptor:
    return Descriptor(3, "socket", 7, "rw", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tcp 10.0.0.1:50112 -> 10.0.0.2:5432 established", "postgresql:5432"),
        ("tcp 10.0.0.2:443 -> 10.0.0.1:50112 established", "client of https:443"),
        ("tcp6 [::]:8999 listening", "tcp:8999"),
        ("tcp 127.0.0.1:33363 -> 127.0.0.1:50112 established", "tcp"),
        ("tcp 127.0.0.1:33363 listening", "tcp:33363"),
        ("udp 10.0.0.1:40000 -> 10.0.0.2:53", "domain:53"),
        ("udp 0.0.0.0:40000", "udp"),
        ("udp 0.0.0.0:*", "udp"),
        ("udp 0.0.0.0:53", "domain:53"),
        ("unix /run/app-17/x.sock listening", "unix /run/app-N/x.sock"),
        ("unix", "unix"),
        ("unix socket 77", "unix"),
        ("socket 77", "socket"),
    ],
)
def test_a_socket_is_named_by_its_service(text: str, expected: str) -> None:
    assert object_of(socket(text))[0] == expected


@pytest.mark.parametrize(
    ("state", "category"),
    [
        ("chan receive", "condition"), ("select (no cases)", "condition"), ("sync.Mutex.Lock", "lock"),
        ("sync.RWMutex.RLock", "lock"), ("sync.WaitGroup.Wait", "condition"), ("sleep", "sleep"),
        ("runnable", "cpu"), ("semacquire", "other"),
    ],
)  # fmt: skip
def test_wait_of_a_goroutine_is_its_state(state: str, category: str) -> None:
    assert goroutine_place(state, None) == WaitPlace(state, category)


def test_input_of_a_goroutine_is_named_by_its_descriptor() -> None:
    server = socket("tcp 10.0.0.1:50112 -> 10.0.0.2:5432 established")
    assert goroutine_place("IO wait", server) == WaitPlace("IO wait: postgresql:5432", "network")


def test_files_are_named_by_their_directory() -> None:
    file = Descriptor(3, "file", 7, "r", "/var/lib/db/16384/2619")
    assert object_of(file) == ("/var/lib/db/N", "disk")
    assert object_of(file._replace(text="/dev/pts/3")) == ("terminal", "other")


def test_frames_of_calls() -> None:
    epoll = Descriptor(5, "epoll", 0, "rw", "2 fds", (6, 7))
    server = socket("tcp 10.0.0.1:50112 -> 10.0.0.2:5432 established")
    pipe = Descriptor(4, "pipe", 9, "r", "pipe 9, read end")
    file = Descriptor(3, "file", 7, "r", "/var/lib/db/x")
    assert place(call=call("epoll_wait", epoll)) == ("epoll_wait", "event", True)
    assert place(call=call("poll", server)) == ("poll: postgresql:5432", "network", False)
    assert place(call=call("poll", server, epoll)) == ("poll", "event", True)
    assert place(call=call("read", pipe)) == ("read: pipe", "pipe", False)
    assert place(call=call("accept4", socket("tcp 0.0.0.0:443 listening"))) == (
        "accept4: https:443",
        "network",
        True,
    )
    assert place("D", call=call("read", file)) == ("disk: read: /var/lib/db", "disk", False)
    assert place("D", call=call("fsync", file)) == ("disk: fsync: /var/lib/db", "disk", False)
    assert place(call=call("fsync", file)) == ("disk: fsync: /var/lib/db", "disk", False), "it just began"
    assert place(call=call("fcntl", file)) == ("file lock: /var/lib/db", "lock", False), "just granted"
    assert place("D", call=call("openat", refers_to=("/x/y",))) == ("disk: openat", "disk", False)
    assert place("D", call=call("munmap")) == ("munmap", "other", False)
    assert place("T") == ("stopped", "other", False)
    assert place("D") == ("disk: page fault", "disk", False)
    assert place(call=call("clock_nanosleep")) == ("sleep", "sleep", True)
    assert place(call=call("wait4", refers_to=("any child",))) == ("child", "child", False)
    fifo = call("openat", refers_to=("/run/queue",))
    assert place(call=fifo, wchan="wait_for_partner") == ("open fifo", "pipe", False)
    assert place(call=call("io_uring_enter")) == ("io_uring_enter", "other", False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("udp 10.0.0.1:40000 -> 10.0.0.2:53", "DNS server"), ("socket 77", "DNS server"),
     ("unix /run/nscd/socket", "poll: unix /run/nscd/socket")],
    ids=["known", "the table of sockets was not read", "local"],
)  # fmt: skip
def test_the_resolver_waits_for_a_dns_server(text: str, expected: str) -> None:
    functions = ("poll", "res_context_send", "getaddrinfo")
    assert place(call=call("poll", socket(text)), functions=functions)[:2] == (expected, "network")


def test_frames_of_python_have_no_addresses_unless_they_are_asked_for() -> None:
    queue = PythonWait(WaitKind.QUEUE, "an item in Queue 0x7f00, which is empty", 0x7F00, is_usual=True)
    facts = PythonFacts(queue)
    assert place(call=futex(0x10, WAIT, 0), facts=facts) == (
        "queue: an item in Queue, which is empty",
        "condition",
        True,
    )
    lock = PythonFacts(PythonWait(WaitKind.LOCK, "threading.Lock 0x7f00", 0x7F00))
    assert place(call=futex(0x10, WAIT, 0), facts=lock) == ("threading.Lock", "lock", False)
    assert "0x7f00" in place(call=futex(0x10, WAIT, 0), facts=lock, details=True).text


def test_a_thread_that_has_just_got_the_gil_waited_for_it() -> None:
    for holder in (0, 1, 2):
        gil = Gil(0x1000, 0x1100, holder)
        assert place(call=futex(0x1010, WAIT, 0), gil=gil, ns_tid=1)[:2] == ("GIL", "gil")


def test_kinds_without_a_class_depend_on_the_descriptor() -> None:
    without = {*WaitKind} - CLASS_OF.keys()
    assert without == {"futex", "read", "write", "events", "stopped", "kernel"}


@pytest.mark.parametrize("function", ["pipe_read", "anon_pipe_write", "pipe_wait"])
def test_a_fifo_is_a_pipe_although_its_descriptor_has_a_path(function: str) -> None:
    fifo = Descriptor(0, "file", 7, "r", "/srv/in.fifo")
    assert place(call=call("read", fifo), wchan=function) == WaitPlace("read: pipe", "pipe")
    found = wait_of(WaitingThread(1, "t", "S", call=call("read", fifo), wchan=function), context())
    assert found is not None
    assert found.what == "data in FIFO /srv/in.fifo, which is empty (fd 0)"
    assert place(call=call("poll", fifo)) == WaitPlace("poll: pipe", "pipe")


def test_a_poll_of_a_connection_to_a_server_and_of_a_wake_up_is_a_wait_for_the_server() -> None:
    server = socket("tcp 10.0.0.1:50112 -> 10.0.0.2:5432 established")
    client = socket("tcp 10.0.0.2:443 -> 10.0.0.1:50112 established")
    pipe, event = (
        Descriptor(4, "pipe", 9, "r", "pipe 9, read end"),
        Descriptor(5, "eventfd", 0, "rw", "eventfd"),
    )
    unix, listening = socket("unix socket 77"), socket("tcp 0.0.0.0:443 listening")
    for wake_up in (pipe, event, unix):
        assert place(call=call("poll", server, wake_up)) == ("poll: postgresql:5432", "network", False)
        for other in (client, listening, wake_up, socket("udp 0.0.0.0:514")):
            assert place(call=call("poll", other, wake_up)) == ("poll", "event", True), other
    assert place(call=call("poll", server, client)) == ("poll", "event", True)
    assert place(call=call("poll", event)) == ("poll: eventfd", "event", False)
    assert place(call=call("poll", listening)) == ("poll: https:443", "network", True)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/dev/input/event0", "/dev/input"), ("/proc/mounts", "/proc"), ("/queue", "/")],
    ids=["device", "file of the kernel", "POSIX message queue"],
)
def test_a_polled_file_is_no_disk(path: str, expected: str) -> None:
    polled = Descriptor(0, "file", 7, "r", path)
    assert place(call=call("poll", polled)) == WaitPlace(f"poll: {expected}", "event")


def test_a_device_is_no_disk_unless_the_kernel_waits_for_a_disk() -> None:
    device = Descriptor(0, "file", 7, "r", "/dev/nvidia/ctl")
    assert place(call=call("ioctl", device)) == WaitPlace("ioctl: /dev/nvidia", "event")
    assert place("D", call=call("read", device)) == WaitPlace("disk: read: /dev/nvidia", "disk")
    root = device._replace(text="/journal")
    assert place(call=call("fsync", root)) == WaitPlace("disk: fsync: /", "disk"), (
        "only a polled one is a queue"
    )
    cpu = device._replace(kind="kvm-vcpu:3")
    assert place(call=call("ioctl", cpu)) == WaitPlace("ioctl: kvm-vcpu:N", "event")


def test_a_private_lock_of_the_c_library_is_a_lock() -> None:
    functions = ("lll_lock_wait_private", "malloc")
    assert place(call=futex(0x10, WAIT, 2), functions=functions)[:2] == ("libc lock", "lock")
    assert place(call=futex(0x10, WAIT, 2), functions=functions[1:])[:2] == ("futex", "other")


def test_a_call_without_a_name_has_its_number() -> None:
    assert place(call=DecodedSyscall(SyscallInfo(449, (0,) * 6), None)) == WaitPlace(
        "system call 449", "other"
    )
