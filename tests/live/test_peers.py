"""A dump names the process at the other end of a socket or pipe that a thread sleeps in.

The other end is held by this test process, or by a child of the sleeping process.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.cli_runner import is_root
from tests.live.hanging import WAITED, Dumped, wait_for_calls
from tests.live.targets import LineReader, assert_untraced, is_forgotten

pytestmark = [pytest.mark.live, pytest.mark.any_load]
THIS = rf"process {os.getpid()} \([^)]+\)"

# what to do with a socket, its descriptor, and "forks": a child does the same with the other end
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
    """Yield the pids of a process that does `how` with a socket, and of its child with the other end."""
    fd = one.fileno() if one else -1
    words = [*before, sys.executable, "-c", PROGRAM, how, str(fd), "none" if one else "forks"]
    call = {"read": "recvfrom", "write": "sendto"}.get(how, "poll")
    done = False
    while not done:  # again where the kernel has lost when a thread last ran, as in `hung`
        with subprocess.Popen(words, stdout=subprocess.PIPE, pass_fds=[fd] if one else []) as process:
            try:
                assert process.stdout is not None
                child = LineReader(process.stdout.fileno()).number("child")
                pids = {process.pid, child} if child > 1 else {process.pid}
                for pid in pids:
                    wait_for_calls(pid, **{call: 1})
                if done := not any(map(is_forgotten, pids)):
                    yield process.pid, child
                    assert_untraced(process.pid)
            finally:
                process.kill()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of a unix socket."""
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_process_at_the_other_end_of_a_unix_socket_is_named(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    unix = r"fd \d+ \(unix socket \d+\)"
    for how, words in (
        ("read", rf"{WAITED} data from {unix}, to be sent by {THIS}, in"),
        ("write", rf"{WAITED} room to write to {unix}, to be read by {THIS}, in"),
        ("poll", rf"{WAITED} events on {unix}, with the other end open in {THIS}, in"),
        ("timed", rf"{WAITED} events on {unix}, at most 1000 s, with the other end open in {THIS}, in"),
    ):
        with sleeper(how, pair[0]) as (pid, _):
            dumped = Dumped(pid)
            dumped.assert_says(words)
            (thread,) = dumped.document["processes"][0]["threads"]
            assert thread["waits_for"]["pids"] == [os.getpid()]


def test_process_at_the_other_end_of_a_polled_pipe_is_named() -> None:
    code = "import select, sys; p = select.poll(); p.register(int(sys.argv[1]), 1); p.poll()"
    read_end, write_end = os.pipe()
    words = [sys.executable, "-c", code, str(read_end)]
    with subprocess.Popen(words, pass_fds=[read_end]) as process:
        try:
            wait_for_calls(process.pid, poll=1)
            Dumped(process.pid).assert_says(
                rf"{WAITED} events on fd {read_end} \(pipe \d+, read end\), "
                rf"with the other end open in {THIS}, in"
            )
        finally:
            process.kill()
    os.close(read_end)
    os.close(write_end)


def test_server_that_does_not_accept_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client, sleeper("read", client) as (pid, _):
            connection = rf"tcp 127\.0\.0\.1:\d+ -> 127\.0\.0\.1:{port} established"
            Dumped(pid).assert_says(
                rf"{WAITED} data from fd \d+ \({connection}\), to be sent by {THIS}, "
                r"which listens there, and has not accepted the connection, in"
            )
            served, _ = listener.accept()
            with served:
                Dumped(pid).assert_says(rf"{connection}\), to be sent by {THIS}, in")


@pytest.mark.parametrize("how", ["read", "write", "poll"])
def test_two_processes_that_wait_at_a_socket_are_a_deadlock(how: str) -> None:
    with sleeper(how) as (parent, child):
        dumped = Dumped(parent, child)
        assert dumped.kinds == ["deadlock"]
        unsure = "" if how == "poll" else ", unless a socket has a time-out of its own"
        dumped.assert_says(f"^=> DEADLOCK: 2 processes wait for each other, and none can go on{unsure}\n")
        assert Dumped(parent).kinds == ["deadlock"], "the other process is followed"


def test_two_processes_that_poll_with_a_timeout_are_no_deadlock() -> None:
    with sleeper("timed") as (parent, child):
        dumped = Dumped(parent, child)
        assert dumped.kinds == ["main", "main"]
        dumped.assert_says(rf"with the other end open in process {child} \(")


@pytest.mark.skipif(not is_root(), reason="needs root")
def test_peer_in_another_network_namespace_is_named() -> None:
    with sleeper("read", before=("unshare", "--net")) as (parent, child):
        Dumped(parent).assert_says(rf"\(unix socket \d+\), to be sent by process {child} \(")
