"""Who is at the other end of a socket that a thread sleeps in.

Law: as in test_hangs.py.  The other end is a process that is known: this one, or the waiting one's child.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.cli_runner import is_root
from tests.live.hanging import Seen, wait_for_calls
from tests.live.targets import LineReader, assert_untraced, is_forgotten

pytestmark = pytest.mark.live
US = rf"process {os.getpid()} \([^)]+\)"

# which end it is, what it does with it, and whether a child does so with the other one
PROGRAM = """
import ctypes, os, select, socket, sys
how, fd, forks = sys.argv[1:]
ends = [*socket.socketpair()] if forks == "forks" else [socket.socket(fileno=int(fd))]
child = os.fork() if forks == "forks" else 1
if child == 0:
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG
one = ends.pop(child == 0)
del ends
print("child", child, flush=True) if child else None
if how == "read":
    one.recv(1)
elif how == "write":
    one.sendall(b"x" * (1 << 26))
else:
    poll = select.poll()
    poll.register(one, select.POLLIN)
    poll.poll(None if how == "poll" else 1000_000)
"""


@contextmanager
def sleeper(
    how: str, one: socket.socket | None = None, before: tuple[str, ...] = ()
) -> Iterator[tuple[int, int]]:
    """Yield the process that does `how` with the socket, and its child, which does so with the other end."""
    fd = one.fileno() if one else -1
    words = [*before, sys.executable, "-c", PROGRAM, how, str(fd), "none" if one else "forks"]
    call = {"read": "recvfrom", "write": "sendto"}.get(how, "poll")
    asked = False
    while not asked:  # again where the kernel has forgotten since when one sleeps, as in `hung`
        with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[fd] if one else []) as process:
            try:
                assert process.stdout is not None
                child = LineReader(process.stdout.fileno()).number("child")
                pids = {process.pid, child} if child > 1 else {process.pid}
                for pid in pids:
                    wait_for_calls(pid, **{call: 1})
                if asked := not any(map(is_forgotten, pids)):
                    yield process.pid, child
                    assert_untraced(process.pid)
            finally:
                process.kill()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A unix socket, and a connection; each time its two ends."""
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_the_other_end_of_a_unix_socket_is_named(pair: tuple[socket.socket, socket.socket]) -> None:
    for how, words in (
        ("read", rf"waits for data from fd \d+ \(unix socket \d+\), to be sent by {US} for"),
        ("write", rf"waits for room to write to fd \d+ \(unix socket \d+\), to be read by {US} for"),
        ("poll", rf"waits for events on fd \d+ \(unix socket \d+\), at whose other end is {US} for"),
        (
            "timed",
            rf"waits for events on fd \d+ \(unix socket \d+\), at most 1000 s, at whose other end is {US} f",
        ),
    ):
        with sleeper(how, pair[0]) as (pid, _):
            seen = Seen(pid)
            seen.says(words)
            (thread,) = seen.document["processes"][0]["threads"]
            assert thread["waits_for"]["pids"] == [os.getpid()]


def test_the_other_end_of_a_pipe_that_is_watched_is_named() -> None:
    code = "import select, sys; p = select.poll(); p.register(int(sys.argv[1]), 1); p.poll()"
    ours, theirs = os.pipe()
    words = [sys.executable, "-c", code, str(ours)]
    with subprocess.Popen(words, pass_fds=[ours]) as process:
        try:
            wait_for_calls(process.pid, poll=1)
            Seen(process.pid).says(
                rf"waits for events on fd {ours} \(pipe \d+, read end\), at whose other end is {US} for"
            )
        finally:
            process.kill()
    os.close(ours)
    os.close(theirs)


def test_a_server_that_does_not_accept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, sleeper("read", client) as (pid, _):
            connection = rf"tcp 127\.0\.0\.1:\d+ -> 127\.0\.0\.1:{port} established"
            Seen(pid).says(rf"waits for data from fd \d+ \({connection}\), to be sent by {US}, "
                           r"which listens there, and has not accepted the connection for")  # fmt: skip
            served, _ = listener.accept()
            with served:
                Seen(pid).says(rf"{connection}\), to be sent by {US} for")


@pytest.mark.parametrize("how", ["read", "write", "poll"])
def test_two_processes_wait_for_each_other_at_a_socket(how: str) -> None:
    with sleeper(how) as (parent, child):
        seen = Seen(parent, child)
        assert seen.kinds == ["deadlock"]
        unsure = "" if how == "poll" else ", unless a socket has a time-out of its own"
        seen.says(f"^=> DEADLOCK: 2 processes wait for each other, and none can go on{unsure}\n")
        assert "deadlock" not in Seen(parent).kinds, "alone it is not known what the other does"


def test_two_that_look_around_now_and_then_are_no_deadlock() -> None:
    with sleeper("timed") as (parent, child):
        seen = Seen(parent, child)
        assert seen.kinds == ["main", "main"]
        seen.says(rf"at whose other end is process {child} \(")


@pytest.mark.skipif(not is_root(), reason="needs root")
def test_in_another_network_namespace() -> None:
    with sleeper("read", before=("unshare", "--net")) as (parent, child):
        Seen(parent).says(rf"\(unix socket \d+\), to be sent by process {child} \(")
