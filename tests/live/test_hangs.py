"""Real hangs are built, and the verdict of `sfsample dump` on each is asserted.

The verdict names the right threads and locks, and no others.  Hangs between processes are in
test_hangs_between_processes.py.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from sfsample.core.arch import AARCH64
from tests.live.cli_runner import sfsample
from tests.live.hanging import WAITED, Dumped, build, find, hung, names, wait_for_calls
from tests.live.targets import (
    ARCH,
    HANG_S,
    fixture,
    is_forgotten,
    running,
    states,
    wait_until,
    wait_until_busy,
)

pytestmark = [pytest.mark.live, pytest.mark.any_load]
ADDRESS = "0x[0-9a-f]+"
VARIABLE = rf"\w+ \({ADDRESS}\)"


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("hangs.c", tmp_path_factory.mktemp("hangs"))


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("queue.cpp", tmp_path_factory.mktemp("queue"))


# -- locks of one process


def test_mutexes_locked_in_opposite_order_are_a_deadlock(hangs: Path) -> None:
    with hung(hangs, "abba", futex=3) as target:
        dumped = Dumped(target.pid)
        debit, credit = (names(target.pid)[name] for name in ("debit", "credit"))
        assert dumped.kinds[0] == "deadlock"
        assert dumped.verdict.startswith(
            "=> DEADLOCK: 2 threads wait for each other, and none can go on; "
            "1 more thread waits behind them (hangs)\n"
        )
        for tid, name, owner, owner_name, mutex in (
            (debit, "debit", credit, "credit", "second"),
            (credit, "credit", debit, "debit", "first"),
        ):
            dumped.assert_says(
                rf"thread {tid} \({name}\) {WAITED} mutex {mutex} \({ADDRESS}\), held by "
                rf"thread {owner} \({owner_name}\), in transfer <- {name}"
            )
            assert dumped.thread(name)["waits_for"]["tid"] == owner
        (finding,) = (f for f in dumped.document["verdict"] if f["kind"] == "deadlock")
        assert [thread["tid"] for thread in finding["threads"]] == sorted((debit, credit))
        assert dumped.rest.index("debit: sleeping") < dumped.rest.index("hangs: sleeping"), (
            "both stacks come first"
        )


@pytest.mark.parametrize("stopped", [False, True], ids=["", "stopped-before"])
def test_deadlock_with_a_timeout_says_so(hangs: Path, stopped: bool) -> None:
    with hung(hangs, "timed", futex=3) as target:
        while stopped:  # a stop makes the kernel show restart_syscall instead of the call
            target.stop_and_wait()
            target.signal(signal.SIGCONT)
            wait_for_calls(target.pid, futex=2, restart_syscall=1)
            stopped = is_forgotten(target.pid)  # the kernel has lost when it last ran: once more
        dumped = Dumped(target.pid)
        debit, patient = (names(target.pid)[name] for name in ("debit", "patient"))
        assert dumped.kinds[0] == "deadlock"
        dumped.assert_says(
            "^=> DEADLOCK: 2 threads wait for each other, until one gives up: there is a time-out; "
            r"1 more thread waits behind them \(hangs\)\n"
        )
        dumped.assert_says(
            rf"thread {patient} \(patient\) {WAITED} mutex {VARIABLE}, held by "
            rf"thread {debit} \(debit\), in transfer_in_time <- patient"
        )


def test_wait_of_a_thread_that_hands_locks_over_is_of_the_moment_of_its_stack(hangs: Path) -> None:
    with hung(hangs, "relay") as target:
        dumps = [json.loads(sfsample("dump", "-p", target.pid, "--json").out) for _ in range(4)]
    threads = [thread for dump in dumps for thread in dump["processes"][0]["threads"] if thread["frames"]]
    naps = {"mutex": False, "sleep": True}
    waits = [(wait["kind"], {"nanosleep"} & {frame["function"] for frame in thread["frames"]})
             for thread in threads if (wait := thread["waits_for"])]  # fmt: skip
    assert "mutex" in dict(waits)
    assert [kind for kind, in_nap in waits if naps.get(kind) is (not in_nap)] == []
    assert all(thread["syscall"] is None for thread in threads if thread["state"] == "R")


def test_mutex_locked_twice_is_a_deadlock(hangs: Path) -> None:
    with hung(hangs, "relock", futex=1) as target:
        dumped = Dumped(target.pid)
        assert dumped.kinds == ["deadlock"]
        dumped.assert_says(rf"DEADLOCK: process {target.pid} \(hangs\) waits for a lock that it holds itself")
        dumped.assert_says(rf"{WAITED} mutex {VARIABLE}, held by itself, in relock <- main")


def test_mutex_whose_owner_has_ended_says_so(hangs: Path) -> None:
    with hung(hangs, "orphan", futex=1) as target:
        dumped = Dumped(target.pid)
        assert dumped.kinds == ["blocked"]
        dumped.assert_says(
            rf"{WAITED} mutex {VARIABLE} \(held by thread \d+, which has ended without unlocking it\)"
        )


def test_robust_and_inheriting_mutexes_and_barrier_are_named(hangs: Path) -> None:
    with hung(hangs, "kinds", futex=3, clock_nanosleep=1) as target:
        dumped = Dumped(target.pid)
        dumped.assert_says(
            rf"=> mutex {VARIABLE} \(1 thread\), mutex {VARIABLE} \(1 thread\): 2 threads \(inheritor, "
            rf"survivor\) wait for the main thread \({target.pid}\), which sleeps 9\d\d\.\d s more of "
            "1000 s, in slow_write <- main"
        )
        dumped.assert_says(
            rf"thread \d+ \(early\) {WAITED} the other threads at barrier .* \(1 of 2 have arrived\)"
        )
        for name in ("inheritor", "survivor"):
            assert dumped.thread(name)["waits_for"]["tid"] == target.pid


def test_condition_variable_names_its_waiters(queue: Path) -> None:
    with hung(queue, "queue", futex=2) as target:
        dumped, consumer = Dumped(target.pid), names(target.pid)["consumer"]
        dumped.assert_says(
            rf"=> the main thread \({target.pid}\), in .*, {WAITED} the end of "
            rf"thread {consumer} \(consumer\), which {WAITED} a signal on condition variable "
            rf"{ADDRESS} \(1 waiter\), in Queue::pop <- consume"
        )
        assert "deadlock" not in dumped.kinds
        lines = dumped.rest.splitlines()
        assert any(line.endswith("  (queue)") and "Queue<...>::pop()+0x" in line for line in lines), "folded"
        assert max(map(len, lines)) < 160
        whole = Dumped(target.pid, flags=("-v",)).rest
        assert "Queue<std::map<std::__cxx11::basic_string<char" in whole
        functions = [frame["function"] for frame in dumped.thread("consumer")["frames"]]
        assert any(f and f.startswith("Queue<std::map<") for f in functions), "JSON does not fold names"


@pytest.mark.parametrize(("columns", "no_color"), [(60, ""), (100, "1"), (20, "")])
def test_lines_fit_the_terminal_and_the_verdict_is_bold(queue: Path, columns: int, no_color: str) -> None:
    """With NO_COLOR the verdict is not bold."""
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
    """Return everything that was written to a terminal whose other end is closed."""
    chunks = []
    with contextlib.suppress(OSError):  # EIO at the end
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    os.close(fd)
    return b"".join(chunks)


def test_reader_behind_a_waiting_writer_is_explained(hangs: Path) -> None:
    with hung(hangs, "starve", futex=3, clock_nanosleep=1) as target:
        dumped = Dumped(target.pid)
        dumped.assert_says(
            rf"thread \d+ \(changer\) {WAITED} the write lock of rwlock {VARIABLE} \(held by 1 reader, "
        )
        dumped.assert_says(
            rf"thread \d+ \(scanner\) {WAITED} the read lock of rwlock {VARIABLE} \(held by 1 reader, "
            rf"glibc does not note which; a waiting writer goes first\), in scan_table"
        )
        locks = {f["what"].rpartition(" ")[2] for p in dumped.document["processes"] for t in p["threads"]
                 if (f := t["waits_for"]) and "lock" in f["kind"]}  # fmt: skip
        assert len(locks) == 1, "both wait for the same lock"


def test_readers_behind_a_writer_name_it(hangs: Path) -> None:
    with hung(hangs, "writer", futex=3, clock_nanosleep=1) as target:
        dumped, changer = Dumped(target.pid), names(target.pid)["changer"]
        dumped.assert_says(
            rf"=> the read lock of rwlock {VARIABLE} \(2 threads\), "
            r"the end of a thread \(1 thread\): "
            rf"3 threads \(hangs, scanner\) wait for thread {changer} \(changer\), "
            r"which sleeps 9\d\d\.\d s more of 1000 s, in slow_write <- change_table <- changer$"
        )


def test_thread_that_blocks_others_comes_before_idle_workers(hangs: Path) -> None:
    with hung(hangs, "workers", 200, futex=204, clock_nanosleep=1) as target:
        dumped, flusher = Dumped(target.pid), names(target.pid)["flusher"]
        assert dumped.kinds == ["blocked"]
        dumped.assert_says(
            rf"=> mutex {VARIABLE} \(3 threads\), the end of a thread \(1 thread\): "
            r"4 threads \(hangs, request-0, request-1, ...\) wait for thread "
            rf"{flusher} \(flusher\), which sleeps 9\d\d\.\d s more of 1000 s, in slow_write <- culprit$"
        )
        assert dumped.rest.startswith(f"thread {flusher} flusher: sleeping for "), (
            "the blocking thread comes first"
        )
        assert dumped.rest.count("\n\n") == 3, "four groups"
        assert "\n200 threads worker-*: sleeping for " in dumped.rest
        assert "and 188 more waits for semaphore " in " ".join(dumped.rest.split())
        assert "(value 0, 200 waiters)" in dumped.rest
        (process,) = dumped.document["processes"]
        assert sorted(map(len, process["groups"])) == [1, 1, 3, 200]
        assert all(thread["moving"] is False for thread in process["threads"])


# -- core files


@pytest.fixture
def core(tmp_path: Path) -> Callable[[int], str]:
    """Return a function that writes a core file of a process with gdb, and returns the verdict on it."""
    if find("gcore") is None:
        pytest.skip("gdb, which writes core files, is not installed")
    if ARCH is AARCH64:
        pytest.skip("registers in core files of AArch64 lack the first argument of a system call")

    def verdict(pid: int) -> str:
        path = tmp_path / "core"
        subprocess.run(["gcore", "-o", path, str(pid)], check=True, capture_output=True, timeout=4 * HANG_S)
        done = sfsample("dump", "--core", f"{path}.{pid}")
        assert done.code == 0, done.err
        return re.sub(r"\n {5}|\n {3}(?!-)", " ", done.out.decode().partition("\n\n")[0])

    return verdict


def test_deadlock_is_found_in_a_core_file(hangs: Path, core: Callable[[int], str]) -> None:
    with hung(hangs, "abba", futex=3) as target:
        debit, credit = (names(target.pid)[name] for name in ("debit", "credit"))
        verdict = core(target.pid)
    assert "\n=> DEADLOCK: 2 threads wait for each other, and none can go on; 1 more thread waits" in verdict
    for tid, owner, function in ((debit, credit, "debit"), (credit, debit, "credit")):
        held = rf"waits for mutex {VARIABLE}, held by thread {owner} \(hangs\), in transfer <- {function}"
        assert re.search(rf"thread {tid} \(hangs\) {held}", verdict), verdict


def test_core_file_has_no_times(hangs: Path, core: Callable[[int], str]) -> None:
    with hung(hangs, "starve", futex=3, clock_nanosleep=1) as target:
        verdict = core(target.pid)
    joins = rf"thread \({target.pid}\), in starve <- main, waits for the end of thread \d+ \(hangs\), which "
    assert re.search(joins, verdict), verdict
    assert re.search(rf"waits for the read lock of rwlock {VARIABLE} \(held by 1 reader", verdict)
    assert not re.search(WAITED, verdict)
    assert " more of" not in verdict


# -- threads that wait for no other


def test_spinning_thread_is_named(hangs: Path) -> None:
    with hung(hangs, "spin", futex=1) as target:
        wait_until_busy(target.pid)  # until the thread exists, has its name and spins
        dumped, poller = Dumped(target.pid, flags=("--looks", 4)), names(target.pid)["poller"]
        dumped.assert_says(
            rf"=> thread {poller} \(poller\) runs in (step <- )?spin_on_flag <- spinner: "
            r"ran, or was ready to run, \d+ % of the time between 4 looks"
        )
        dumped.assert_says(
            rf"=> the main thread \({target.pid}\), in main, {WAITED} the end of thread {poller} \(poller\), "
            r"which runs, in "
        )
        assert (dumped.thread("poller")["moving"], dumped.thread("hangs")["moving"]) == (True, False)
        assert sorted(dumped.kinds) == ["blocked", "spinning"]


def test_spinning_thread_without_symbols_has_an_address(hangs: Path, tmp_path: Path) -> None:
    subprocess.run(["strip", "-o", tmp_path / "bare", hangs], check=True)
    with hung(tmp_path / "bare", "spin", futex=1) as target:
        wait_until_busy(target.pid)
        dumped = Dumped(target.pid, flags=("--looks", 4))
        dumped.assert_says(
            r"\(poller\) (runs|is busy) in \[bare\+0x[0-9a-f]+\]: ran, or was ready to run, \d+ % of the time"
        )


def test_sleeping_thread_says_how_long(hangs: Path) -> None:
    with hung(hangs, "sleep", clock_nanosleep=1) as target:
        dumped = Dumped(target.pid)
        dumped.assert_says(rf"^=> process {target.pid} \(hangs\) sleeps 9\d\d\.\d s more of 1000 s, in main$")
        (thread,) = dumped.document["processes"][0]["threads"]
        assert thread["syscall"]["timeout_s"] == 1000


def test_vfork_parent_waits_for_its_child() -> None:
    with running(fixture("v3"), "vfork") as target:
        wait_until(lambda: states(target.pid) == {"D"}, "the parent waits for its child")
        dumped = Dumped(target.pid)
        assert dumped.kinds == ["blocked"]
        dumped.assert_says(
            rf"process {target.pid} \(target\), in .*, {WAITED} its vfork child \d+ \(target\) "
            r"to exec or to end; process \d+ \(target\) "
        )
        assert "uninterruptible for " in dumped.rest
