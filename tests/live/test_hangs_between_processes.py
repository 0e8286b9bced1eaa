"""Real hangs between processes, and at the network, are built, and the verdict on each is asserted.

Hangs of one process are in test_hangs.py.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.hanging import WAITED, Dumped, build, hung, wait_for_calls
from tests.live.targets import python, states, status, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load]


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("hangs.c", tmp_path_factory.mktemp("hangs"))


# -- pipes, file locks, children


def test_two_processes_that_fill_each_others_pipes_are_a_deadlock(hangs: Path) -> None:
    with hung(hangs, "pipes", child=True, write=1) as target:
        wait_for_calls(target.child, write=1)
        parent, child = target.pid, target.child
        dumped = Dumped(parent, child)
        assert dumped.kinds == ["deadlock"]
        dumped.assert_says("=> DEADLOCK: 2 processes wait for each other, and none can go on")
        dumped.assert_says(
            rf"process {parent} \(hangs\) {WAITED} room in pipe \d+, which is full \(fd "
            rf"\d+\), to be read by "
            rf"process {child} \(responder\), in send_all <- main"
        )
        dumped.assert_says(
            rf"process {child} \(responder\) {WAITED} room in pipe \d+, which is full "
            rf"\(fd \d+\), to be read "
            rf"by process {parent} \(hangs\)"
        )
        assert Dumped(parent).kinds == ["deadlock"], "a descendant that it waits for is dumped, too"
        alone = Dumped(child)
        assert alone.kinds == ["blocked"]
        alone.assert_says(
            rf"process {child} \(responder\) {WAITED} room in pipe .* "
            rf"to be read by process {parent} \(hangs\)"
        )


SPLICES = """
import os, sys
reader, writer = os.pipe()
file = os.open(os.devnull, os.O_RDWR)
full = sys.argv[1] == "full"
if full:
    os.set_blocking(writer, False)
    while True:
        try: os.write(writer, bytes(4096))
        except BlockingIOError: break
    os.set_blocking(writer, True)
    file = os.open(sys.executable, os.O_RDONLY)
os.splice(file if full else reader, writer if full else file, 100)
"""


@pytest.mark.parametrize(("state", "wait"), [("full", "room in pipe"), ("empty", "data in pipe")])
def test_splice_waits_for_the_pipe_whose_end_it_has(state: str, wait: str) -> None:
    with python(SPLICES, state) as process:
        wait_for_calls(process.pid, splice=1)
        Dumped(process.pid).assert_says(rf"{WAITED} {wait} \d+, which is {state}")


def test_two_processes_that_take_turns_are_no_deadlock(hangs: Path) -> None:
    """They are sampled one after the other, and each may wait for the other at its own instant."""
    with hung(hangs, "turns", child=True) as target:
        for _ in range(5):
            dumped = Dumped(target.pid, target.child, flags=("--no-stop", "-q"), code=None)
            assert "deadlock" not in dumped.kinds
            assert "DEADLOCK" not in dumped.text


@pytest.mark.parametrize(("how", "lock"), [("flock", "flock"), ("fcntl", "record lock")])
def test_file_lock_names_its_holder(hangs: Path, tmp_path: Path, how: str, lock: str) -> None:
    with hung(hangs, how, tmp_path / "db.lock", child=True, **{how: 1}) as target:
        dumped = Dumped(target.pid)
        dumped.assert_says(
            rf"process {target.pid} \(hangs\), in take_file <- file_lock <- main, {WAITED} the {lock} on "
            rf"{tmp_path}/db\.lock, held by process "
            rf"{target.child} \(lockkeeper\), which {WAITED} a signal, in file_lock"
        )
        (thread,) = dumped.document["processes"][0]["threads"]
        assert thread["waits_for"]["pids"] == [target.child]


def test_wait_for_a_child_names_it(hangs: Path) -> None:
    with hung(hangs, "child", child=True, wait4=1) as target:
        wait_until(lambda: status(target.child)["Name"] == "compiler", "the child has its name")
        Dumped(target.pid).assert_says(
            rf"in reap_child <- main, {WAITED} a child to end: {target.child} \(compiler\); process "
            rf"{target.child} \(compiler\) {WAITED} a signal, in "
        )


def test_vfork_names_the_child_that_runs_and_not_a_zombie(hangs: Path) -> None:
    with hung(hangs, "vfork", child=True) as target:
        wait_until(lambda: states(target.pid) == {"D"}, "the parent waits for its child")
        Dumped(target.pid).assert_says(
            rf"{WAITED} its vfork child (?!{target.child} )\d+ \(hangs\) to exec or to end; process \d+ "
        )


@pytest.mark.parametrize(("flags", "end"), [(os.O_RDONLY, "writer"), (os.O_WRONLY, "reader")])
def test_open_of_a_fifo_names_it(hangs: Path, tmp_path: Path, flags: int, end: str) -> None:
    fifo = tmp_path / f"queue{flags}"
    os.mkfifo(fifo)
    with hung(hangs, "fifo", fifo, flags, openat=1) as target:
        dumped = Dumped(target.pid)
        assert dumped.kinds == ["open fifo"]
        dumped.assert_says(rf"process {target.pid} \(hangs\) {WAITED} a {end} of FIFO {fifo}, in open_queue")


def test_pipe_that_only_its_reader_writes_to_says_so(hangs: Path) -> None:
    with hung(hangs, "own", read=1) as target:
        Dumped(target.pid).assert_says(
            rf"{WAITED} data in pipe \d+, which is empty \(fd \d+\), whose only writer is this process "
            "itself, so nothing will come"
        )


# -- the network


@pytest.fixture
def full_listener() -> Iterator[int]:
    """Yield the port of a listener that accepts no connection, so a connect(2) beyond its queue hangs."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        yield listener.getsockname()[1]


def test_unanswered_connect_names_the_listener(hangs: Path, full_listener: int) -> None:
    with hung(hangs, "connect", full_listener, connect=1) as target:
        dumped = Dumped(target.pid)
        assert dumped.kinds == ["blocked"]
        dumped.assert_says(
            rf"{WAITED} an answer to connect: tcp 127\.0\.0\.1:\d+ -> "
            rf"127\.0\.0\.1:{full_listener} connecting, to be accepted by process {os.getpid()} "
            rf"\([^)]+\), in call_backend <- main"
        )


def test_silent_dns_server_is_named(hangs: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        with hung(hangs, "dns", port, poll=1) as target:
            dumped = Dumped(target.pid)
            assert dumped.kinds == ["name resolution"]
            dumped.assert_says(
                rf"{WAITED} an answer from the DNS server: udp 127\.0\.0\.1:\d+ -> "
                rf"127\.0\.0\.1:{port}, in look_up_host <- main"
            )


def test_child_that_its_parent_waits_for_completes_a_deadlock_with_and_without_s(tmp_path: Path) -> None:
    program = """
import fcntl, os, sys
held = open(sys.argv[1], "w")
fcntl.flock(held, fcntl.LOCK_EX)
read, write = os.pipe()
if not os.fork():
    os.close(read)
    held.close()  # then the lock ends with the parent, and this process ends, too
    fcntl.flock(open(sys.argv[1]), fcntl.LOCK_EX)
    os._exit(0)
os.close(write)
os.read(read, 1)
"""
    with python(program, tmp_path / "lock") as target:
        wait_until(lambda: "DEADLOCK: 2 processes" in Dumped(target.pid, flags=("-s",)).text, "both wait")
        dumped = Dumped(target.pid)
        assert dumped.kinds == ["deadlock"]
        assert len(dumped.document["processes"]) == 2


def test_child_that_is_in_no_deadlock_is_not_in_the_dump_of_its_parent() -> None:
    program = """
import os, time
parent = os.getpid()
if not os.fork():
    while os.getppid() == parent:
        time.sleep(0.05)
    os._exit(0)
os.wait()
"""
    with python(program) as target:
        wait_for_calls(target.pid, wait4=1)
        dumped = Dumped(target.pid)
        assert [process["pid"] for process in dumped.document["processes"]] == [target.pid]
        assert dumped.kinds == ["blocked"]
