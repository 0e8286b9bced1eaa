"""The descendants of a process are found once each, also where the kernel reuses their ids."""

import os
import shutil
import subprocess
import sys

import pytest

from sfsample.core.filesystem import ProcessRoot
from sfsample.errors import NotPermitted
from sfsample.process.descendants import Descendants
from tests.live.parent_program import parent, send_order
from tests.live.targets import started

pytestmark = [pytest.mark.live, pytest.mark.any_load]


class Refused:
    """A process that cannot be opened."""

    def __init__(self, pid: int) -> None:
        raise NotPermitted(pid, f"not permitted to trace: {pid}")


def test_each_descendant_is_reported_once_with_the_reason_of_a_refusal():
    with parent() as target:
        descendants = Descendants([target.pid], Refused)
        try:
            assert list(descendants.open_new(force=False)) == []
            child = send_order(target, "child")
            (refusal,) = descendants.open_new(force=False)
            assert (refusal.pid, str(refusal)) == (child, f"not permitted to trace: {child}")
            assert list(descendants.open_new(force=False)) == []
            grandchild = send_order(target, "grandchild")
            assert [refusal.pid for refusal in descendants.open_new(force=False)][-1] == grandchild
        finally:
            descendants.close()


# Starts children that end, and does not wait for them.
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
        descendants = Descendants([target.pid], Refused)
        try:
            refusals = list(descendants.open_new(force=True))
        finally:
            descendants.close()
    assert [str(refusal) for refusal in refusals] == [f"process has ended: {r.pid}" for r in refusals]
    assert len(refusals) == 3


# Runs in its own pid namespace, where it can choose the next id.
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
    time.sleep(2 / os.sysconf("SC_CLK_TCK"))  # the next process has a later start time, in ticks

read_end, write_end = os.pipe()
go, on = os.pipe()
"""

# The kernel reuses ids of descendants.
REUSED = """
from sfsample.process.descendants import Descendants

def with_child():
    fork(rest, 700)
    os.write(write_end, b"+")
    rest()

def named():
    for _ in range(2):
        child = fork(rest, 500)
        os.write(write_end, b"+")
        os.read(go, 1)
        end(child)

member = fork(named, 400)
descendants = Descendants([member], lambda pid: pid)
found = []
for _ in range(2):
    os.read(read_end, 1)
    found.append([pid for pid, _ in descendants.list_new()])
    os.write(on, b"+")
os.waitpid(member, 0)
fork(with_child, 500)
os.read(read_end, 1)
found.append([pid for pid, _ in descendants.list_new()])
print(found)
"""


def output_in_pid_namespace(program: str) -> tuple[bytes, bytes]:
    """Run a program that chooses ids; return its stdout and stderr."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if shutil.which("unshare") is None or subprocess.run([*words, "true"], check=False).returncode:
        pytest.skip("may not make a pid namespace here")
    code = [sys.executable, "-c", CHOOSING + program]
    done = subprocess.run([*words, *code], capture_output=True, check=False)
    return done.stdout, done.stderr


def test_reused_id_is_another_descendant_or_none():
    """sfsample once missed the second process of an id, and took children of a stranger for descendants."""
    assert output_in_pid_namespace(REUSED) == (b"[[500], [500], []]\n", b"")


# Two processes with the same id and different names, one after the other; each ends when it has a sample.
RENAMED = """
import sfsample

def child():
    with open("/proc/self/comm", "w") as file:
        file.write(name)
    os.write(write_end, b"+")
    rest()

def named():
    global name
    for name in turns:
        fork(child, 500)
        os.read(go, 1)
        end(500)

def should_stop():
    seen = {profile.processes.get(key.process_key) for key in profile.counts}
    if turns[0] in seen:
        os.write(on, b"+")
        turns.pop(0)
    return not turns

turns = ["first", "second"]
fork(named, 400)
os.read(read_end, 1)
profile = sfsample.Profile(200)
options = sfsample.RecordOptions(rate=200, mode="wall", subprocesses=True)
sfsample.record(400, 100, options, should_stop=should_stop, profile=profile)
threads = sfsample.api.named(profile).threads
print(sorted((thread.process, thread.tid) for thread in threads if thread.pid == 500), profile.stats.ended_by)
"""


def test_reused_id_is_another_process_in_the_profile():
    assert output_in_pid_namespace(RENAMED) == (b"[('first', 500), ('second', 500)] signal\n", b"")


def test_sfsample_is_no_descendant():
    """sfsample -s on its own shell samples neither itself nor its children."""
    descendants = Descendants([os.getppid()], ProcessRoot)
    try:
        with parent() as child:
            assert not {os.getpid(), child.pid} & {pid for pid, _ in descendants.list_new()}
    finally:
        descendants.close()
