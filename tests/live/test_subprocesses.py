"""--subprocesses: the descendants of a process are recorded like itself, from their birth to their end.

Law: the target starts children when it is told to, and says so; a test goes on when each has been sampled.
"""

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import sfsample
from sfsample import api
from sfsample.core.filesystem import ProcessRoot
from sfsample.core.stack import StopReason
from sfsample.errors import NotPermitted
from sfsample.process.descendants import Descendants
from sfsample.process.new_ids import NewIds
from tests.live.cli_runner import COMMAND, begun, ended, wait_until_sampled
from tests.live.recording import record_samples
from tests.live.targets import (
    HANG_S,
    Target,
    assert_untraced,
    first_line,
    fixture,
    python,
    started,
    wait_until,
)
from tests.live.test_interference import TRACER
from tests.live.test_resources import open_files

pytestmark = pytest.mark.live

# Starts children as it is told, a letter a line: one that spins; one that starts another that spins; a few
# that end at once (one at a time).  Says their ids, or how they ended.
PARENT = """
import os, subprocess, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
target = sys.argv[2]
say = lambda *words: print(*words, file=out)
children = []
say("ready", os.getpid())
for line in sys.stdin:
    if line == "child\\n":
        children.append(subprocess.Popen([target, "leaf", "1"], stdout=subprocess.PIPE))
        say("child", children[-1].stdout.readline().split()[1].decode())
    elif line == "grandchild\\n":
        words = ["sh", "-c", f"'{target}' recursion 1 & wait"]
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        say("child", children[-1].stdout.readline().split()[1].decode())
    elif line == "kill\\n":
        children[0].kill()
        say("ended", children.pop(0).wait())
    else:
        say("ended", sum(subprocess.call(["true"]) for _ in range(50)))
for child in children:
    child.kill()
    child.wait()
"""


@contextlib.contextmanager
def parent() -> Iterator[Target]:
    with started(
        [sys.executable, "-c", PARENT, "{fd}", str(fixture("v3"))], start_new_session=True
    ) as target:
        try:
            target.await_ready()
            yield target
            target.assert_unharmed()
        finally:
            os.killpg(target.pid, signal.SIGKILL)


def told(target: Target, order: str, answer: str = "child") -> int:
    target.send(f"{order}\n".encode())
    return target.reader.number(answer)


def record(target: Target, profile: sfsample.Profile, should_stop: Callable[[], bool]) -> None:
    """Record until it is to stop; the time limit only catches a hang."""
    sfsample.record(target.pid, 4 * HANG_S, sfsample.RecordOptions(rate=200, mode="wall", subprocesses=True), should_stop=should_stop, profile=profile)
    assert profile.stats.ended_by == "signal", (profile.stats.as_json(), sfsample.folded(profile))


class Director:
    """Asked at every tick: gives the next order when all processes have samples, and notes the answers.

    It never waits for one: who runs between two ticks may hold the target.
    """

    def __init__(
        self, target: Target, profile: sfsample.Profile, *orders: str, pids: Iterable[int] = ()
    ) -> None:
        self.target, self.profile, self.orders = target, profile, list(orders)
        self.pids = {target.pid, *pids}
        self.answers: list[str] = []
        self._asked = 0

    def __call__(self) -> bool:
        said = self.target.reader.available()
        self.answers += said
        self.pids |= {int(line.split()[1]) for line in said if line.startswith("child ")}
        if len(self.answers) < self._asked or not self.pids <= {key.pid for key in self.profile.counts}:
            return False
        if not self.orders:
            return True
        self.target.send(f"{self.orders.pop(0)}\n".encode())
        self._asked += 1
        return False


def test_children_that_are_there_or_born_later_and_their_children():
    with parent() as target:
        before = told(target, "child")
        profile = sfsample.Profile(200)
        director = Director(target, profile, "child", "grandchild", pids=[before])

        namer = api.symbolizer(profile)  # the same at each tick, or they would all be late

        def all_seen() -> bool:
            """Whether the shell was, and the others where they spin: first they are seen as they begin."""
            text = "\n" + sfsample.folded(profile, namer=namer)
            return all(one in text for one in ("\nsh;", ";leaf_spin ", ";spin_innermost "))

        record(target, profile, lambda: director() and all_seen())
        assert len(director.pids) == 4
        stats = profile.stats
        assert stats.subprocesses.watched >= 4  # with the shell
        assert stats.subprocesses.refused == 0
        for pid in director.pids - {target.pid}:
            assert_untraced(pid)
            own = {key: count for key, count in profile.counts.items() if key.pid == pid}
            # an execve(2) between the look at the maps and that at the stack; sh has two in its life
            assert sum(n for key, n in own.items() if key.stop_reason is not StopReason.OUTERMOST) <= 2
            # they were born later than the recording began: no sample stands for the time before
            wall = sum(ns for key, ns in profile.wall_ns.items() if key.pid == pid)
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


def test_whose_birth_was_not_told_is_seen_a_little_later(monkeypatch):
    """An id is given out before its bearer can be seen."""
    monkeypatch.setattr(NewIds, "any", lambda _: False)
    with parent() as target:
        profile = sfsample.Profile(200)
        record(target, profile, Director(target, profile, "child", "grandchild"))
    assert profile.stats.subprocesses.watched >= 2


def test_without_the_flag_they_are_left_alone():
    with parent() as target:
        told(target, "child")
        profile = record_samples(target.pid, 40, rate=200, mode="wall")
        assert {key.pid for key in profile.counts} == {target.pid}
        assert profile.stats.as_json()["subprocesses"] == {"watched": 0, "short_lived": 0, "refused": 0}


def test_children_that_end_leave_nothing():
    with parent() as target:
        gc.collect()
        files = open_files()
        profile = sfsample.Profile(200)
        seen = profile.stats.subprocesses
        ended = []
        target.send(b"many\n")

        def enough() -> bool:
            """Go on at the end of one lot with the next."""
            said = target.reader.available()
            ended.extend(said)
            if seen.watched + seen.short_lived >= 20:
                return bool(said)
            if said:
                target.send(b"many\n")
            return False

        record(target, profile, enough)
        assert set(ended) == {"ended 0"}  # what they do went well
        assert profile.homes.keys() == profile.processes.keys() == {key.pid for key in profile.counts}
        del profile
        gc.collect()
        assert open_files() == files


def test_a_child_that_has_ended_is_no_end_but_the_end_of_the_parent_is(tmp_path):
    with parent() as target:
        child = told(target, "child")
        profile = sfsample.Profile(200)
        director = Director(target, profile, "kill", pids=[child])
        after: list[int] = []

        def drive() -> bool:
            """Go on for some ticks when the child has ended."""
            if not after and director():
                after.append(profile.stats.ticks)
            return bool(after) and profile.stats.ticks > after[0] + 20

        record(target, profile, drive)
        assert director.answers == ["ended -9"]
    said, go = tmp_path / "said", tmp_path / "go"
    os.mkfifo(go)
    with open(go, "r+b", buffering=0) as on:  # for both, so that nobody waits for the other end
        program = f"'{fixture('v3')}' leaf 1 > {said} & read line < {go}"
        with begun("record", "-s", "--", "sh", "-c", program) as recorder, spinning(said) as pid:
            wait_until_sampled(pid)
            on.write(b"\n")
            done = ended(recorder)
    assert done.code == 0
    assert any("subprocess" in line for line in done.err)


def test_a_child_that_a_debugger_holds_is_told_and_no_error():
    with parent() as target:
        child = told(target, "child")
        with python(TRACER, child, "running") as tracer:
            assert first_line(tracer) == "tracing"
            profile = sfsample.Profile(200)
            stats = profile.stats
            record(target, profile, lambda: bool(stats.captures["failed"]) and stats.ticks > 50)
        assert {key.pid for key in profile.counts} == {target.pid}
        assert stats.captures["failed"]
        assert any(f"process {tracer.pid} traces it" in text for text in stats.problems)
        wait_until(lambda: not_traced(child), "let go")


def not_traced(pid: int) -> bool:
    with contextlib.suppress(AssertionError):
        assert_untraced(pid)
        return True
    return False


@contextlib.contextmanager
def spinning(said: Path) -> Iterator[int]:
    """Wait until a program has said in a file that it is where it spins; give its id; end it afterwards."""
    wait_until(lambda: said.exists() and said.read_text().endswith("\n"), "the program is ready")
    pid = int(said.read_text().split()[1])
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_the_command_line_shows_each_process_as_a_root(tmp_path):
    said = tmp_path / "said"
    program = f"'{fixture('v3')}' leaf 1 > {said} & wait"
    with begun("-s", "--mode", "wall", "--", "sh", "-c", program) as child, spinning(said) as pid:
        wait_until_sampled(pid, 10)
        child.terminate()
        done = ended(child)
    assert done.code == 0, done.err
    roots = {stack.partition(";")[0] for stack in done.stacks()}
    assert roots >= {"sh", "target"}
    assert any(stack.startswith("target;_start;") and stack.endswith(";leaf_spin") for stack in done.stacks())


MANY = """
ulimit -Sn > {said}
trap 'kill $pids; exit' TERM
for i in 1 2 3 4 5 6 7 8 9 10; do
    for j in 1 2 3; do sleep 1000 >/dev/null 2>&1 & pids="$pids $!"; done
done
wait
"""


def test_more_processes_than_the_usual_limit_of_open_files(tmp_path):
    """The limit of the program that is started stays what it was."""
    said, stats = tmp_path / "limit", tmp_path / "stats"
    words = [*COMMAND, "-s", "--mode", "wall", "--stats", stats, "--", "sh", "-c", MANY.format(said=said)]
    limited = ["sh", "-c", 'ulimit -Sn 40; exec "$@"', "sh", *words]
    with subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            wait_until(lambda: child.poll() is not None or held_open(child.pid) > 30, "all are watched")
            child.terminate()
            done = ended(child)
        finally:
            child.kill()
    assert done.code == 0, done.err
    assert json.loads(stats.read_text())["subprocesses"] == {"watched": 30, "short_lived": 0, "refused": 0}
    assert said.read_text() == "40\n"


def held_open(pid: int) -> int:
    """Of how many processes it holds the directory open."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return sum(re.fullmatch(r"/proc/\d+", name) is not None for name in found)


class Stranger:
    """A process that could not be opened."""

    def __init__(self, pid: int) -> None:
        raise NotPermitted(pid, f"not permitted to trace: {pid}")


def test_a_family_tells_everybody_once_and_why_one_cannot_be_looked_at():
    with parent() as target:
        family = Descendants([target.pid], Stranger)
        try:
            assert list(family.born(force=False)) == []
            child = told(target, "child")
            (refusal,) = family.born(force=False)
            assert (refusal.pid, str(refusal)) == (child, f"not permitted to trace: {child}")
            assert list(family.born(force=False)) == []
            grandchild = told(target, "grandchild")
            assert [one.pid for one in family.born(force=False)][-1] == grandchild
        finally:
            family.close()


# Starts children that end, and are waited for when it is told to.
ENDED = """
import os, sys
for _ in range(3):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
print("ready", os.getpid(), file=open(int(sys.argv[1]), "w"))
sys.stdin.read()
"""


def test_children_that_have_ended_are_not_opened():
    with started([sys.executable, "-c", ENDED, "{fd}"]) as target:
        target.await_ready()
        family = Descendants([target.pid], Stranger)
        try:
            refusals = list(family.born(force=True))
        finally:
            family.close()
    assert [str(one) for one in refusals] == [f"process has ended: {one.pid}" for one in refusals]
    assert len(refusals) == 3


# In a pid namespace of its own, where the next id can be chosen.
CHOOSING = """
import os, sys, time

def fork(work, pid):
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    assert child == pid, "the id was taken"
    return child

def rest():
    time.sleep(600)

def end(pid):
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # the next one's start time, in ticks, is another

ours, theirs = os.pipe()
go, on = os.pipe()
"""

# Ids of members are given to others.
GIVEN_AWAY = """
from sfsample.process.descendants import Family

def with_child():
    fork(rest, 700)
    os.write(theirs, b"+")
    rest()

def named():
    for _ in range(2):
        child = fork(rest, 500)
        os.write(theirs, b"+")
        os.read(go, 1)
        end(child)

member = fork(named, 400)
family = Family([member], lambda pid: pid)
told = []
for _ in range(2):
    os.read(ours, 1)
    told.append([pid for pid, _ in family.newborn()])
    os.write(on, b"+")
os.waitpid(member, 0)
fork(with_child, 500)
os.read(ours, 1)
told.append([pid for pid, _ in family.newborn()])
print(told)
"""


def said_alone(program: str) -> tuple[bytes, bytes]:
    """Run a program that chooses ids; return what it wrote."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("may not make a pid namespace here")
    code = [sys.executable, "-c", CHOOSING + program]
    done = subprocess.run([*words, *code], capture_output=True, check=False)
    return done.stdout, done.stderr


def test_ids_that_were_given_to_other_processes():
    """Seen: the next process of that id was missed, and the children of a stranger were taken for its own."""
    assert said_alone(GIVEN_AWAY) == (b"[[500], [500], []]\n", b"")


# Two processes of the same id and of different names, one after the other; each ends once it was sampled.
NAMED_ANEW = """
import sfsample

def child():
    with open("/proc/self/comm", "w") as file:
        file.write(name)
    os.write(theirs, b"+")
    rest()

def named():
    global name
    for name in turns:
        fork(child, 500)
        os.read(go, 1)
        end(500)

def should_stop():
    seen = {profile.processes.get(key.pid) for key in profile.counts}
    if turns[0] in seen:
        os.write(on, b"+")
        turns.pop(0)
    return not turns

turns = ["first", "second"]
fork(named, 400)
os.read(ours, 1)
profile = sfsample.Profile(200)
sfsample.record(400, 100, sfsample.RecordOptions(rate=200, mode="wall", subprocesses=True), should_stop=should_stop, profile=profile)
threads = sfsample.api.named(profile).threads
print(sorted((thread.process, thread.tid) for thread in threads if thread.pid == 500), profile.stats.ended_by)
"""


def test_an_id_that_is_given_again_is_another_process():
    assert said_alone(NAMED_ANEW) == (b"[('first', 500), ('second', 500)] signal\n", b"")


def test_we_are_nobodys_descendant():
    """A shell that samples itself with all its children must not see the sampler."""
    family = Descendants([os.getppid()], ProcessRoot)
    try:
        with parent() as ours:
            assert not {os.getpid(), ours.pid} & {pid for pid, _ in family.newborn()}
    finally:
        family.close()
