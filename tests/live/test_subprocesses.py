"""--subprocesses records the descendants of a process like the process itself, from start to end.

The target starts children on request and reports them; a test goes on when each has samples.
"""

import contextlib
import gc
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import sfsample
from sfsample import api
from sfsample.core.stack import StopReason
from sfsample.process.procfs import NewIds
from tests.live.cli_runner import COMMAND, STOPPING, begun, ended, wait_until_sampled
from tests.live.parent_program import parent, send_order
from tests.live.recording import record_samples
from tests.live.targets import HANG_S, Target, assert_untraced, first_line, fixture, python, wait_until
from tests.live.test_interference import TRACER
from tests.live.test_resources import open_files

pytestmark = pytest.mark.live


def record(target: Target, profile: sfsample.Profile, should_stop: Callable[[], bool]) -> None:
    """Record until `should_stop`; the time limit is only a guard against hangs."""
    options = sfsample.RecordOptions(rate=200, mode="wall", subprocesses=True)
    sfsample.record(target.pid, 4 * HANG_S, options, should_stop=should_stop, profile=profile)
    assert profile.stats.ended_by == "signal", (profile.stats.as_json(), sfsample.folded(profile))


class Director:
    """`should_stop` of a recording: sends the next order when all processes have samples; keeps the answers.

    It never waits for an answer, since sfsample may hold the target while it runs.
    """

    def __init__(
        self, target: Target, profile: sfsample.Profile, *orders: str, pids: Iterable[int] = ()
    ) -> None:
        self.target, self.profile, self.orders = target, profile, list(orders)
        self.pids = {target.pid, *pids}
        self.answers: list[str] = []
        self._orders_sent = 0

    def __call__(self) -> bool:
        lines = self.target.reader.available()
        self.answers += lines
        self.pids |= {int(line.split()[1]) for line in lines if line.startswith("child ")}
        if len(self.answers) < self._orders_sent or not self.pids <= {
            key.process_key for key in self.profile.counts
        }:
            return False
        if not self.orders:
            return True
        self.target.send(f"{self.orders.pop(0)}\n".encode())
        self._orders_sent += 1
        return False


def test_present_and_later_children_and_grandchildren_are_sampled():
    with parent() as target:
        before = send_order(target, "child")
        profile = sfsample.Profile(200)
        director = Director(target, profile, "child", "grandchild", pids=[before])

        namer = api.symbolizer(profile)  # one for all ticks: a new one at each would make all ticks late

        def all_sampled() -> bool:
            """Whether there are samples of the shell, and of the others where they spin."""
            text = "\n" + sfsample.folded(profile, namer=namer)
            return all(part in text for part in ("\nsh;", ";leaf_spin ", ";spin_innermost "))

        record(target, profile, lambda: director() and all_sampled())
        assert len(director.pids) == 4
        stats = profile.stats
        assert stats.subprocesses.watched >= 4  # with the shell
        assert stats.subprocesses.refused == 0
        for pid in director.pids - {target.pid}:
            assert_untraced(pid)
            own = {key: count for key, count in profile.counts.items() if key.process_key == pid}
            # an execve(2) between the reads of the maps and of the stack; sh calls it twice
            assert sum(n for key, n in own.items() if key.stop_reason is not StopReason.OUTERMOST) <= 2
            # no sample stands for the time before the start of the process
            wall = sum(total.wall_ns for key, total in profile.totals.items() if key.process_key == pid)
            assert wall <= stats.duration_s * 1e9
        roots = {line.partition(";")[0] for line in sfsample.folded(profile).splitlines()}
        assert {"target", "sh"} < roots
        text = sfsample.folded(profile)
        assert "target;_start;__libc_start_main;" in text
        assert ";leaf_spin " in text
        assert ";spin_innermost " in text
        left = [
            name for name in open_files() if name.startswith(tuple(f"/proc/{pid}" for pid in director.pids))
        ]
        assert left == []


def test_child_is_found_later_when_its_id_was_not_new(monkeypatch):
    """The kernel assigns an id before the process appears in /proc."""
    monkeypatch.setattr(NewIds, "any", lambda _: False)
    with parent() as target:
        profile = sfsample.Profile(200)
        record(target, profile, Director(target, profile, "child", "grandchild"))
    assert profile.stats.subprocesses.watched >= 2


def test_without_the_flag_children_are_not_sampled():
    with parent() as target:
        send_order(target, "child")
        profile = record_samples(target.pid, 40, rate=200, mode="wall")
        assert {key.process_key for key in profile.counts} == {target.pid}
        assert profile.stats.as_json()["subprocesses"] == {"watched": 0, "short_lived": 0, "refused": 0}


def test_ended_children_leave_no_open_files():
    with parent() as target:
        gc.collect()
        files = open_files()
        profile = sfsample.Profile(200)
        subprocesses = profile.stats.subprocesses
        ended = []
        target.send(b"many\n")

        def enough() -> bool:
            """Send the next order at the answer to the last."""
            lines = target.reader.available()
            ended.extend(lines)
            if subprocesses.watched + subprocesses.short_lived >= 20:
                return bool(lines)
            if lines:
                target.send(b"many\n")
            return False

        record(target, profile, enough)
        assert set(ended) == {"ended 0"}  # each child succeeded
        assert profile.roots.keys() == profile.processes.keys() == {key.process_key for key in profile.counts}
        del profile
        gc.collect()
        assert open_files() == files


def test_recording_ends_with_the_parent_and_not_with_a_child(tmp_path):
    with parent() as target:
        child = send_order(target, "child")
        profile = sfsample.Profile(200)
        director = Director(target, profile, "kill", pids=[child])
        after: list[int] = []

        def drive() -> bool:
            """Continue for some ticks after the end of the child."""
            if not after and director():
                after.append(profile.stats.ticks)
            return bool(after) and profile.stats.ticks > after[0] + 20

        record(target, profile, drive)
        assert director.answers == ["ended -9"]
    output, go = tmp_path / "output", tmp_path / "go"
    os.mkfifo(go)
    with open(
        go, "r+b", buffering=0
    ) as on:  # read and write, so that open(2) does not wait for the other end
        program = f"'{fixture('v3')}' leaf 1 > {output} & read line < {go}"
        with begun("record", "-s", *STOPPING, "--", "sh", "-c", program) as recorder, spinning(output) as pid:
            wait_until_sampled(pid)
            on.write(b"\n")
            done = ended(recorder)
    assert done.code == 0
    assert any("subprocess" in line for line in done.err)


def test_child_of_another_tracer_is_reported_as_a_problem():
    with parent() as target:
        child = send_order(target, "child")
        with python(TRACER, child, "running") as tracer:
            assert first_line(tracer) == "tracing"
            profile = sfsample.Profile(200)
            stats = profile.stats
            record(target, profile, lambda: bool(stats.captures["failed"]) and stats.ticks > 50)
        assert {key.process_key for key in profile.counts} == {target.pid}
        assert stats.captures["failed"]
        assert any(f"process {tracer.pid} traces it" in text for text in stats.problems)
        wait_until(lambda: not_traced(child), "released")


def not_traced(pid: int) -> bool:
    with contextlib.suppress(AssertionError):
        assert_untraced(pid)
        return True
    return False


@contextlib.contextmanager
def spinning(output: Path) -> Iterator[int]:
    """Wait until a program has written `ready PID` to a file; yield the pid; kill it at the end."""
    wait_until(lambda: output.exists() and output.read_text().endswith("\n"), "the program is ready")
    pid = int(output.read_text().split()[1])
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_each_process_is_a_root(tmp_path):
    output = tmp_path / "output"
    program = f"'{fixture('v3')}' leaf 1 > {output} & wait"
    with begun("-s", "--mode", "wall", "--", "sh", "-c", program) as child, spinning(output) as pid:
        wait_until_sampled(pid, 10)
        child.terminate()
        done = ended(child)
    assert done.code == 0, done.err
    stacks = [stack.removesuffix(";[runnable: no CPU]") for stack in done.stacks()]
    assert {stack.partition(";")[0] for stack in stacks} >= {"sh", "target"}
    assert any(stack.startswith("target;_start;") and stack.endswith(";leaf_spin") for stack in stacks)


MANY = """
ulimit -Sn > {output}
trap 'kill $pids; exit' TERM
for i in 1 2 3 4 5 6 7 8 9 10; do
    for j in 1 2 3; do sleep 1000 >/dev/null 2>&1 & pids="$pids $!"; done
done
wait
"""


def test_more_processes_than_the_soft_limit_of_open_files(tmp_path):
    """sfsample raises its own limit, and the program that it starts has the old one."""
    output, stats = tmp_path / "limit", tmp_path / "stats"
    words = [*COMMAND, "-s", "--mode", "wall", "--stats", stats, "--", "sh", "-c", MANY.format(output=output)]
    limited = ["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", *words]
    with subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            wait_until(lambda: child.poll() is not None or held_open(child.pid) > 30, "all are sampled")
            child.terminate()
            done = ended(child)
        finally:
            child.kill()
    assert done.code == 0, done.err
    assert json.loads(stats.read_text())["subprocesses"] == {"watched": 30, "short_lived": 0, "refused": 0}
    assert output.read_text() == "40\n"


def held_open(pid: int) -> int:
    """Return the number of processes whose directory in /proc a process holds open."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return sum(re.fullmatch(r"/proc/\d+", name) is not None for name in found)
