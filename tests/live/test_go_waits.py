"""What goroutines wait for, compared with what a program of three versions of Go says of itself.

The program (tests/fixtures/src/hang.go) has no symbols.  It prints the id of each goroutine, and the address
of the lock or channel that it waits for.
"""

import json
import os
import re
import subprocess
from contextlib import closing, contextmanager

import pytest

from sfsample.process.capture import ThreadCapturer
from sfsample.process.process import LiveProcess
from sfsample.unwind.unwinder import Unwinder
from tests.live.cli_runner import sfsample
from tests.live.compiled import GO_VERSIONS, needs_go, unpack_go
from tests.live.targets import HANG_S, LineReader, assert_untraced
from tests.live.test_go import function_of

pytestmark = [pytest.mark.live, needs_go]

MOVING_DUMPS = 5
# name: kind of the wait, and the name of the only goroutine that is known to be able to end it
LOCKS = {
    "ab": ("mutex", "ba"),
    "ba": ("mutex", "ab"),
    "globals-ab": ("mutex", "globals-ba"),
    "globals-ba": ("mutex", "globals-ab"),
    "plain-waiter": ("mutex", None),
    "self": ("mutex", "self"),
    "closure-waiter": ("mutex", "closure"),
    "loop-waiter": ("mutex", "loop"),
    "once-waiter": ("once", "once"),
    "once-self": ("once", "once-self"),
    "writer": ("write lock", "reader"),
    "late-reader": ("read lock", "writer"),
    "group": ("wait group", None),
}
RECEIVERS = ("plain", "closure", "loop", "locked")


@pytest.fixture(scope="module", params=GO_VERSIONS)
def program(request, tmp_path_factory):
    return unpack_go(tmp_path_factory.mktemp("go"), "hang", request.param)


@contextmanager
def running(*command):
    """Run a program; yield its process and, by name, (id, address) of its goroutines."""
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        said, lines = {}, LineReader(process.stderr.fileno())
        while (line := lines.line()) != "ready":
            name, goid, address = line.split()
            said[name] = int(goid), int(address)
        try:
            yield process, said
        finally:
            process.kill()


def dumped(process):
    done = sfsample("dump", "-p", process.pid, "--timeout", HANG_S, "--json")
    assert done.code == 0, done.err
    assert_untraced(process.pid)
    assert process.poll() is None
    return json.loads(done.out)


def test_waits_are_those_of_the_program(program):
    with running(program) as (process, said):
        document = dumped(process)
        text = sfsample("dump", "-p", process.pid, "--timeout", HANG_S).out.decode()
        threads = {*map(int, os.listdir(f"/proc/{process.pid}/task"))}
    goroutines = {goroutine["id"]: goroutine for goroutine in document["processes"][0]["goroutines"]}
    waits = {name: goroutines[goid]["waits_for"] for name, (goid, _) in said.items() if goid}
    ids = {name: goid for name, (goid, _) in said.items()}
    found = {name: (waits[name]["kind"], waits[name]["goroutines"]) for name in LOCKS}
    assert found == {name: (kind, [ids[who]] if who else []) for name, (kind, who) in LOCKS.items()}
    addresses = {name: int(waits[name]["address"], 16) for name in (*LOCKS, *RECEIVERS, "sender", "receiver")}
    assert addresses == {name: said[name][1] for name in addresses}
    check_other_waits(waits)
    check_verdict(document["verdict"], ids)
    assert f"goroutine {ids['ab']} in main.transfer" in text
    [(locked, tid)] = re.findall(r"^goroutine (\d+): .*, locked to thread (\d+)$", text, re.MULTILINE)
    assert int(locked) == ids["locked"]
    assert int(tid) in threads
    assert "waits for ever: receive from a nil channel" in text


def check_other_waits(waits):
    assert (waits["writer"]["readers"], waits["group"]["missing"]) == (1, 3)
    counts = ("queued", "capacity", "waiting")
    assert [waits["sender"][key] for key in counts] == [2, 2, 2]  # the goroutine of the select waits too
    assert [waits["receiver"][key] for key in counts] == [0, 0, 4]
    assert {*waits["select"]["channels"]} == {waits["sender"]["address"], waits["receiver"]["address"]}
    assert waits["nil"]["kind"] == "nil channel"
    assert waits["no-cases"]["kind"] == "no cases"
    assert waits["cond"] is None
    assert 3000 < waits["sleep"]["left_s"] <= 3600


def check_verdict(verdict, ids):
    rings = {tuple(sorted(f["goroutines"])): f["text"] for f in verdict if f["kind"] == "deadlock"}
    named = [("ab", "ba"), ("globals-ab", "globals-ba"), ("once-self",)]
    assert rings.keys() == {tuple(sorted(ids[name] for name in names)) for names in named}
    assert all(text.startswith("DEADLOCK: ") for text in rings.values())
    assert verdict[-1]["kind"] == "goroutines"
    assert not any("holds" in line for f in verdict for line in (f["text"], *f["details"]))


def test_a_descriptor_and_its_other_end(program):
    with running(program) as (process, said):
        goid, fd = said["conn"]
        [wait] = [g["waits_for"] for g in dumped(process)["processes"][0]["goroutines"] if g["id"] == goid]
    assert (wait["kind"], wait["fd"], wait["pids"]) == ("events", fd, [process.pid])
    assert wait["file"].startswith("unix socket")


def test_goroutines_that_wait_again_and_again_are_no_deadlock(program):
    """Each has a deferred Unlock of the lock that the other one waits for, and has unlocked it by hand."""
    with running(program, "moving") as (process, _):
        for _ in range(MOVING_DUMPS):
            assert not any(finding["kind"] == "deadlock" for finding in dumped(process)["verdict"])


@pytest.mark.parametrize(("arguments", "by_hand"), [((), False), (("moving",), True)])
def test_a_function_that_also_unlocks_by_hand_is_noticed(program, arguments, by_hand):
    """Its deferred Unlock may be for a lock that it will take again, so it proves no deadlock."""
    names = {"main.transfer", "main.globals"} if not arguments else {"main.takeTurns"}
    with running(program, *arguments) as (process, _), closing(LiveProcess(process.pid)) as live:
        capturer, pending = ThreadCapturer(live, Unwinder(live.modules)), set()
        while not pending:  # a goroutine that runs has no copy of its stack
            for _, stack, unlocks in capturer.goroutines(lambda: False):
                pcs = [frame.pc for frame in stack.frames] if stack else ()
                if not names.isdisjoint(function_of(live.modules.find(pc), pc)[0] for pc in pcs):
                    pending.update(unlock.by_hand for unlock in unlocks)
    assert pending == {by_hand}
