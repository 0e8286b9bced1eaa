"""Real hangs: each is built, and the words that name it are asserted.

Law: the verdict must be right about who and about what, and must not accuse anybody else.
"""

import contextlib
import fcntl
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sfsample.core.arch import AARCH64
from tests.live.cli_runner import sfsample
from tests.live.hanging import Seen, build, find, hung, names, wait_for_calls
from tests.live.targets import (
    ARCH,
    HANG_S,
    fixture,
    is_forgotten,
    running,
    states,
    status,
    wait_until,
    wait_until_busy,
)

pytestmark = pytest.mark.live
TIME = r"for [0-9.]+ s"
ADDRESS = "0x[0-9a-f]+"
VARIABLE = rf"\w+ \({ADDRESS}\)"


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("hangs.c", tmp_path_factory.mktemp("hangs"))


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("queue.cpp", tmp_path_factory.mktemp("queue"))


# -- locks of one process


def test_two_threads_take_two_mutexes_in_opposite_order(hangs: Path) -> None:
    with hung(hangs, "abba", futex=3) as target:
        seen = Seen(target.pid)
        debit, credit = (names(target.pid)[name] for name in ("debit", "credit"))
        assert seen.kinds[0] == "deadlock"
        assert seen.verdict.startswith("=> DEADLOCK: 2 threads wait for each other, and none can go on\n")
        for me, mine, other, others in (
            (debit, "debit", credit, "credit"),
            (credit, "credit", debit, "debit"),
        ):
            wanted = rf"{'second' if mine == 'debit' else 'first'} \({ADDRESS}\)"
            seen.says(rf"thread {me} \({mine}\) waits for mutex {wanted}, held by thread {other} "
                      rf"\({others}\)"
                      rf" {TIME}, in transfer <- {mine}")  # fmt: skip
            assert seen.thread(mine)["waits_for"]["tid"] == other
        (finding,) = (f for f in seen.document["verdict"] if f["kind"] == "deadlock")
        assert [thread["tid"] for thread in finding["threads"]] == sorted((debit, credit))
        assert seen.rest.index("debit: sleeping") < seen.rest.index("hangs: sleeping"), (
            "both stacks come first"
        )


@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped-before"])
def test_a_deadlock_that_a_time_out_will_end(hangs: Path, stopped: bool) -> None:
    with hung(hangs, "timed", futex=3) as target:
        while stopped:  # then the kernel says that it is in another system call
            target.stop_and_wait()
            target.signal(signal.SIGCONT)
            wait_for_calls(target.pid, futex=2, restart_syscall=1)
            stopped = is_forgotten(target.pid)  # since when it sleeps: once more
        seen = Seen(target.pid)
        debit, patient = (names(target.pid)[name] for name in ("debit", "patient"))
        assert seen.kinds[0] == "deadlock"
        seen.says("^=> DEADLOCK: 2 threads wait for each other, until one gives up: there is a time-out\n")
        seen.says(rf"thread {patient} \(patient\) waits for mutex {VARIABLE}, held by thread {debit} "
                  rf"\(debit\) {TIME}, in transfer_in_time <- patient")  # fmt: skip


def test_a_thread_takes_a_mutex_twice(hangs: Path) -> None:
    with hung(hangs, "relock", futex=1) as target:
        seen = Seen(target.pid)
        assert seen.kinds == ["deadlock"]
        seen.says(rf"DEADLOCK: process {target.pid} \(hangs\) waits for a lock that it holds itself")
        seen.says(rf"waits for mutex {VARIABLE}, held by itself {TIME}, in relock <- main")


def test_a_mutex_whose_owner_has_ended(hangs: Path) -> None:
    with hung(hangs, "orphan", futex=1) as target:
        seen = Seen(target.pid)
        assert seen.kinds == ["blocked"]
        seen.says(rf"waits for mutex {VARIABLE} \(held by thread \d+, which has ended without unlocking it\)")


def test_mutexes_of_other_kinds_and_a_barrier(hangs: Path) -> None:
    with hung(hangs, "kinds", futex=3, clock_nanosleep=1) as target:
        seen = Seen(target.pid)
        seen.says(rf"2 threads \(inheritor, survivor\) wait for the main thread \({target.pid}\): "
                  rf"1 for mutex {VARIABLE}, 1 for mutex {VARIABLE}")  # fmt: skip
        seen.says(r"thread \d+ \(early\) waits for the others at barrier .* \(1 of 2 have arrived\)")
        for name in ("inheritor", "survivor"):
            assert seen.thread(name)["waits_for"]["tid"] == target.pid


def test_a_condition_variable_that_nobody_notifies(queue: Path) -> None:
    with hung(queue, "queue", futex=2) as target:
        seen, consumer = Seen(target.pid), names(target.pid)["consumer"]
        seen.says(
            rf"=> the main thread \({target.pid}\) waits for the end of thread {consumer} \(consumer\) {TIME}"
        )
        seen.says(rf"thread {consumer} \(consumer\) waits for a signal on condition variable {ADDRESS} "
                  rf"\(1 waiter\) {TIME}, in Queue::pop <- consume")  # fmt: skip
        assert "deadlock" not in seen.kinds
        lines = seen.rest.splitlines()
        assert any(line.endswith("  (queue)") and "Queue<...>::pop()+0x" in line for line in lines), "folded"
        assert max(map(len, lines)) < 160
        whole = Seen(target.pid, flags=("-v",)).rest
        assert "Queue<std::map<std::__cxx11::basic_string<char" in whole
        functions = [frame["function"] for frame in seen.thread("consumer")["frames"]]
        assert any(f and f.startswith("Queue<std::map<") for f in functions), "the JSON has it whole"


@pytest.mark.parametrize(("columns", "no_color"), [(60, ""), (100, "1"), (20, "")])
def test_on_a_terminal(queue: Path, columns: int, no_color: str) -> None:
    """Lines fit, the verdict stands out, and neither is so when NO_COLOR is set or nobody looks."""
    with hung(queue, "queue", futex=2) as target:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environment = {**os.environ, "NO_COLOR": no_color}
        done = sfsample("dump", "-p", target.pid, stdout=theirs, env=environment)
        os.close(theirs)
        assert done.code == 0
        text = read_all(ours).decode().replace("\r\n", "\n")
        assert ("\x1b[1m=> the main thread" in text) == (no_color == "")
        lines = re.sub(r"\x1b\[[01]m", "", text).splitlines()
        assert "\x1b" not in "".join(lines)
        words = max(len(word) for line in lines if line.startswith(("=>", "   ")) for word in line.split())
        assert max(map(len, lines)) <= max(columns, words + 5), (
            "a word that is longer than the line stands alone"
        )
        assert columns == 20 or any("Queue<...>::pop" in line for line in lines)


def read_all(fd: int) -> bytes:
    """Everything that was written to a terminal whose other end is closed."""
    chunks = []
    with contextlib.suppress(OSError):  # EIO: that is its end
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    os.close(fd)
    return b"".join(chunks)


def test_a_reader_starves_behind_a_writer_that_waits(hangs: Path) -> None:
    with hung(hangs, "starve", futex=3, clock_nanosleep=1) as target:
        seen = Seen(target.pid)
        seen.says(
            rf"thread \d+ \(changer\) waits for the write lock of rwlock {VARIABLE} \(held by 1 reader, "
        )
        seen.says(
            rf"thread \d+ \(scanner\) waits for the read lock of rwlock {VARIABLE} \(held by 1 reader, "
            rf"glibc does not note which; a writer waits, and goes before it\) {TIME}, in scan_table"
        )
        locks = {f["what"].rpartition(" ")[2] for p in seen.document["processes"] for t in p["threads"]
                 if (f := t["waits_for"]) and "lock" in f["kind"]}  # fmt: skip
        assert len(locks) == 1, "both speak of the same lock"


def test_readers_wait_for_a_writer(hangs: Path) -> None:
    with hung(hangs, "writer", futex=3, clock_nanosleep=1) as target:
        seen, changer = Seen(target.pid), names(target.pid)["changer"]
        seen.says(rf"=> 3 threads \(hangs, scanner\) wait for thread {changer} \(changer\): "
                  rf"2 for the read lock of rwlock {VARIABLE}, 1 for its end")  # fmt: skip
        seen.says(
            rf"thread {changer} \(changer\) sleeps 9\d\d\.\d s more of 1000 s, in slow_write <- change_table"
        )


def test_two_hundred_idle_workers_and_one_culprit(hangs: Path) -> None:
    with hung(hangs, "workers", 200, futex=204, clock_nanosleep=1) as target:
        seen, culprit = Seen(target.pid), names(target.pid)["flusher"]
        assert seen.kinds == ["blocked"]
        seen.says(rf"=> 4 threads \(hangs, request-0, request-1, ...\) wait for thread "
                  rf"{culprit} \(flusher\): "
                  rf"3 for mutex {VARIABLE}, 1 for its end\n   - thread {culprit} \(flusher\) "
                  rf"sleeps 9\d\d\.\d s more "
                  r"of 1000 s, in slow_write <- culprit$")  # fmt: skip
        assert seen.rest.startswith(f"thread {culprit} flusher: sleeping for "), "the culprit comes first"
        assert seen.rest.count("\n\n") == 3, "four groups"
        assert "\n200 threads worker-*: sleeping for " in seen.rest
        assert "and 188 more\n  waits for semaphore " in seen.rest
        assert "(value 0, 200 waiters)" in seen.rest
        (process,) = seen.document["processes"]
        assert sorted(map(len, process["groups"])) == [1, 1, 3, 200]
        assert all(thread["moving"] is False for thread in process["threads"])


# -- after its death


@pytest.fixture
def core(tmp_path: Path) -> Callable[[int], str]:
    """Have gdb write the core file of a process, and return its verdict, in words."""
    if find("gcore") is None:
        pytest.skip("gdb, which makes core files, is not installed")
    if ARCH is AARCH64:
        pytest.skip("registers in core files of AArch64 have lost the first argument of a system call")

    def verdict(pid: int) -> str:
        path = tmp_path / "core"
        subprocess.run(["gcore", "-o", path, str(pid)], check=True, capture_output=True, timeout=4 * HANG_S)
        done = sfsample("dump", "--core", f"{path}.{pid}")
        assert done.code == 0, done.err
        return re.sub(r"\n {5}|\n {3}(?!-)", " ", done.out.decode().partition("\n\n")[0])

    return verdict


def test_a_deadlock_is_found_in_a_core_file(hangs: Path, core: Callable[[int], str]) -> None:
    with hung(hangs, "abba", futex=3) as target:
        debit, credit = (names(target.pid)[name] for name in ("debit", "credit"))
        said = core(target.pid)
    assert "\n=> DEADLOCK: 2 threads wait for each other, and none can go on\n" in said
    for me, other, way in ((debit, credit, "debit"), (credit, debit, "credit")):
        held = rf"waits for mutex {VARIABLE}, held by thread {other} \(hangs\), in transfer <- {way}"
        assert re.search(rf"thread {me} \(hangs\) {held}", said), said


def test_a_core_file_does_not_tell_the_time(hangs: Path, core: Callable[[int], str]) -> None:
    with hung(hangs, "starve", futex=3, clock_nanosleep=1) as target:
        said = core(target.pid)
    joins = rf"the main thread \({target.pid}\) waits for the end of thread \d+ \(hangs\), in starve"
    assert re.search(joins, said), said
    assert re.search(rf"waits for the read lock of rwlock {VARIABLE} \(held by 1 reader", said)
    assert not re.search(TIME, said)
    assert " more of" not in said


# -- threads by themselves


def test_a_spinning_thread(hangs: Path) -> None:
    with hung(hangs, "spin", futex=1) as target:
        wait_until_busy(target.pid)  # until it is born, has its name and spins
        seen, poller = Seen(target.pid, flags=("--looks", 4)), names(target.pid)["poller"]
        seen.says(rf"=> thread {poller} \(poller\) spins in (step <- )?spin_on_flag <- spinner: "
                  r"ran, or wanted to, \d+% of the time between 4 looks")  # fmt: skip
        seen.says(rf"=> the main thread \({target.pid}\) waits for the end of thread {poller} \(poller\)")
        assert (seen.thread("poller")["moving"], seen.thread("hangs")["moving"]) == (True, False)
        assert sorted(seen.kinds) == ["blocked", "spinning"]


def test_a_spinning_thread_without_names(hangs: Path, tmp_path: Path) -> None:
    subprocess.run(["strip", "-o", tmp_path / "bare", hangs], check=True)
    with hung(tmp_path / "bare", "spin", futex=1) as target:
        wait_until_busy(target.pid)
        seen = Seen(target.pid, flags=("--looks", 4))
        seen.says(r"\(poller\) (spins|is busy) in \[bare\+0x[0-9a-f]+\]: ran, or wanted to, \d+% of the time")


def test_asleep_for_a_time(hangs: Path) -> None:
    with hung(hangs, "sleep", clock_nanosleep=1) as target:
        seen = Seen(target.pid)
        seen.says(rf"^=> process {target.pid} \(hangs\) sleeps 9\d\d\.\d s more of 1000 s, in main$")
        (thread,) = seen.document["processes"][0]["threads"]
        assert thread["syscall"]["timeout_s"] == 1000


def test_the_parent_of_a_vfork() -> None:
    with running(fixture("v3"), "vfork") as target:
        wait_until(lambda: states(target.pid) == {"D"}, "the parent waits for its child")
        seen = Seen(target.pid)
        assert seen.kinds == ["blocked"]
        seen.says(
            rf"process {target.pid} \(target\) waits for its vfork child \d+ \(target\) "
            rf"to exec or to end {TIME}"
        )
        assert "uninterruptible for " in seen.rest


# -- between processes


def test_two_processes_write_to_each_other_and_nobody_reads(hangs: Path) -> None:
    with hung(hangs, "pipes", child=True, write=1) as target:
        wait_for_calls(target.child, write=1)
        us, child = target.pid, target.child
        seen = Seen(us, child)
        assert seen.kinds == ["deadlock"]
        seen.says("=> DEADLOCK: 2 processes wait for each other, and none can go on")
        seen.says(rf"process {us} \(hangs\) waits for room in pipe \d+, which is full \(fd "
                  rf"\d+\), to be read by "
                  rf"process {child} \(responder\) {TIME}, in send_all <- main")  # fmt: skip
        seen.says(rf"process {child} \(responder\) waits for room in pipe \d+, which is full "
                  rf"\(fd \d+\), to be read "
                  rf"by process {us} \(hangs\)")  # fmt: skip
        alone = Seen(us)
        assert alone.kinds == ["blocked"]
        alone.says(
            rf"process {us} \(hangs\) waits for room in pipe .* to be read by process {child} \(responder\)"
        )


def test_two_processes_that_take_turns_are_no_deadlock(hangs: Path) -> None:
    """They are looked at one after the other, and each may just then wait for the other."""
    with hung(hangs, "turns", child=True) as target:
        for _ in range(5):
            seen = Seen(target.pid, target.child, flags=("--no-stop", "-q"), code=None)
            assert "deadlock" not in seen.kinds
            assert "DEADLOCK" not in seen.text


@pytest.mark.parametrize(("how", "words"), [("flock", "flock"), ("fcntl", "record lock")])
def test_blocked_on_a_lock_file(hangs: Path, tmp_path: Path, how: str, words: str) -> None:
    with hung(hangs, how, tmp_path / "db.lock", child=True, **{how: 1}) as target:
        seen = Seen(target.pid)
        seen.says(rf"process {target.pid} \(hangs\) waits for the {words} on "
                  rf"{tmp_path}/db\.lock, held by process "
                  rf"{target.child} \(lockkeeper\) {TIME}, in take_file <- file_lock")  # fmt: skip
        (thread,) = seen.document["processes"][0]["threads"]
        assert thread["waits_for"]["pids"] == [target.child]


def test_waiting_for_a_child(hangs: Path) -> None:
    with hung(hangs, "child", child=True, wait4=1) as target:
        wait_until(lambda: status(target.child)["Name"] == "compiler", "the child has its name")
        Seen(target.pid).says(
            rf"waits for a child to end: {target.child} \(compiler\) {TIME}, in reap_child <- main"
        )


# -- the network


@pytest.fixture
def full_listener() -> Iterator[int]:
    """Nobody accepts, so a connect(2) beyond the queue is not answered."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        yield listener.getsockname()[1]


def test_a_connection_that_is_not_answered(hangs: Path, full_listener: int) -> None:
    with hung(hangs, "connect", full_listener, connect=1) as target:
        seen = Seen(target.pid)
        assert seen.kinds == ["blocked"]
        seen.says(rf"waits for an answer to connect: tcp 127\.0\.0\.1:\d+ -> "
                  rf"127\.0\.0\.1:{full_listener} connecting, to be accepted by process {os.getpid()} "
                  rf"\([^)]+\) {TIME}, in call_backend <- main")  # fmt: skip


def test_a_name_server_that_does_not_answer(hangs: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        with hung(hangs, "dns", port, poll=1) as target:
            seen = Seen(target.pid)
            assert seen.kinds == ["name resolution"]
            seen.says(rf"waits for an answer from the DNS server: udp 127\.0\.0\.1:\d+ -> "
                      rf"127\.0\.0\.1:{port} "
                      rf"{TIME}, in look_up_host <- main")  # fmt: skip
