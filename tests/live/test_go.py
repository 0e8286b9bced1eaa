"""Stacks of busy Go programs without symbols: they are whole, and each call leads to the frame below.

A direct call before a return address states which function it calls.  That is the proof of an edge, and needs
no second tool.
"""

import json
import os
import re
import signal
import subprocess
from collections import Counter
from contextlib import closing, contextmanager
from math import sqrt
from statistics import mean, stdev

import pytest

from sfsample import api
from sfsample.core.arch import AMD64
from sfsample.core.stack import Found, StopReason
from sfsample.process import go_capture
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.capture_running import ANY_THREAD
from sfsample.process.process import LiveProcess
from sfsample.recording.choose_sampler import FreeCpus
from sfsample.recording.profile import Profile
from sfsample.unwind.unwinder import Unwinder
from tests.live.cli_runner import sampled, sfsample
from tests.live.compiled import GO_VERSIONS, needs_go, unpack_go
from tests.live.targets import ARCH, HANG_S, LineReader, assert_untraced, wait_until_busy

pytestmark = [pytest.mark.live, needs_go]

# functions that jump to the function that they were called for
JUMP = {"runtime.systemstack", "runtime.morestack_noctxt", "runtime.newstack"}
JUMP |= {"runtime.asmcgocall_landingpad"}  # to a function in C
# functions in assembler that no function calls, but to which several functions jump
BODIES = {"cmpbody", "countbody", "memeqbody", "indexbody", "indexbytebody", "aeshashbody"}
CROSSING = {"runtime.systemstack", "runtime.morestack"}
STACKS = 300 if ARCH is AMD64 else 100  # emulation is slow


@pytest.fixture(scope="module", params=GO_VERSIONS)
def program(request, tmp_path_factory):
    return unpack_go(tmp_path_factory.mktemp("go"), "busy", request.param)


@contextmanager
def running(program, work):
    """Run a Go program that does `work`, "b" or "p" (tests/fixtures/src/busy.go); yield its process."""
    environment = {**os.environ, "GOTRACEBACK": "system"}
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([program], **pipes, env=environment) as process:
        process.stdin.write(work.encode())
        process.stdin.flush()
        assert LineReader(process.stderr.fileno()).line() == "ready"
        try:
            yield process
        finally:
            process.kill()


def captured(pid):
    """Yield stacks of all threads in turn, stopped wherever they are."""
    process = LiveProcess(pid)
    try:
        capturer = ThreadCapturer(process, Unwinder(process.modules))
        while True:
            for tid, stat in process.threads():
                taken = capturer.capture(process.thread(tid), stat.state, HANG_NS, ANY_THREAD)
                if isinstance(taken, CapturedStack):
                    yield taken
    finally:
        process.close()


HANG_NS = int(HANG_S * 1e9)


def function_of(module, pc):
    """Return name and entry of the Go function at a run-time address."""
    table = module.tables.go if module else None  # the vDSO has none
    function = table.function_at(module.vaddr(pc)) if table else None
    return (function.name, module.address(function.entry)) if function else ("", 0)


def wrong_edges(taken):
    """Yield each call whose target is not the function of the frame below: both names."""
    frames = taken.stack.frames
    for callee, caller, below, module in zip(
        frames, frames[1:], taken.modules, taken.modules[1:], strict=False
    ):
        target = None if caller.exact or module is None else module.call_target(caller.pc)
        if target is None:
            continue
        called, (name, entry) = function_of(module, target)[0], function_of(below, callee.pc)
        is_tail = (
            called in JUMP
            or called.startswith("runtime.gcWriteBarrier")
            or name.rpartition(".")[2] in {*BODIES, "gogo", called.rpartition(".")[2]}  # gogo jumps anywhere
        )
        if target != entry and not is_tail:
            yield called, name


def test_stacks_are_whole_and_every_edge_is_a_call(program):
    with running(program, "b") as process:
        wait_until_busy(process.pid)
        check_stacks(process.pid)
        assert_untraced(process.pid)
        assert process.poll() is None


def check_stacks(pid):
    reasons, wrong, names, founds = Counter(), Counter(), Counter(), Counter()
    for number, taken in enumerate(captured(pid)):
        reasons[taken.stack.stop_reason] += 1
        wrong.update(wrong_edges(taken))
        names.update(
            {function_of(m, f.pc)[0] for f, m in zip(taken.stack.frames, taken.modules, strict=True)}
        )
        callers = zip(taken.modules, taken.stack.frames[1:], strict=False)
        # (the vDSO has CFI)
        founds.update(frame.found for module, frame in callers if module and module.tables.go)
        if number >= STACKS and all(names[name] for name in CROSSING):
            break
    assert wrong == {}
    assert reasons[StopReason.OUTERMOST] >= 0.99 * reasons.total(), reasons
    assert {"main.work", "runtime.goexit"} <= names.keys()
    # a search for the return address of a leaf, which AArch64 has in a register, and which sleeps
    assert founds.keys() <= {Found.GO, Found.SIGNAL_FRAME, Found.CODE, *[Found.SCAN] * (ARCH is not AMD64)}


def test_timers_do_not_replace_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 1.0)
    profile = Profile(99)
    with running(unpack_go(tmp_path, "busy", "1.27"), "b") as process:
        api.record(process.pid, HANG_S, profile=profile, should_stop=lambda: bool(profile.stats.engine_why))
    stats = profile.stats
    assert stats.engine_why == (
        "no CPU was free, but timers copy only one of the two stacks of a Go thread; "
        "--perf-events uses them anyway"
    )
    assert stats.lacks_timers
    assert stats.timers_since_s is None


def test_parked_goroutines_are_counted_like_threads(program):
    with running(program, "p") as process:
        command = ("-p", process.pid, "--mode", "wall", "--tasks")
        done = sampled(*command, enough=lambda done: any("[goroutine " in stack for stack in done.stacks()))
        assert_untraced(process.pid)
        assert process.poll() is None
    stacks = [
        (stack.split(";")[1:], count) for stack, count in done.stacks().items() if "[goroutine " in stack
    ]
    counts = Counter({(chain[-2], chain[-1]): count for chain, count in stacks})
    one = counts["main.choose", "[select]"]
    assert one > 0
    assert counts == {
        ("main.choose", "[select]"): one, ("main.receive", "[chan receive]"): 5 * one,
        ("main.nested", "[chan receive]"): one, ("main.park.func1", "[chan send]"): one,
        ("main.park.func2", "[select (no cases)]"): one,
        ("main.park.func3", "[chan receive (nil chan)]"): one,
    }  # fmt: skip
    assert all(task == f"[goroutine {first}]" for (task, first, *_), _ in stacks)


def test_of_many_goroutines_some_stand_for_all(program, monkeypatch):
    monkeypatch.setattr(go_capture, "TASKS_PER_LOOK", 3)
    with running(program, "p") as process, closing(LiveProcess(process.pid)) as live:
        capture = go_capture.GoCapture(live)
        parked = [g for g in capture.goroutines(lambda: False) if g.stack and g.state != "syscall"]
        looks = [capture.parked() for _ in range(400)]
    numbers = [len(found) * scale for found, scale in looks]
    assert max(len(found) for found, _ in looks) == 3
    assert abs(mean(numbers) - len(parked)) < 5 * stdev(numbers) / sqrt(len(numbers))


def goroutines_of_traceback(text):
    """Return state and functions of each goroutine in what SIGQUIT makes the program print."""
    found = {}
    for block in text.split("\n\n"):
        head = re.match(
            r"goroutine (\d+)(?: gp=\S+ m=\S+(?: mp=\S+)?)? \[([^\],]*)[^\]]*\]:\n(.*)", block, re.DOTALL
        )
        if head and head[1] != "0":
            calls = [
                line for line in head[3].split("\n") if line and line[0] != "\t" and "created by" not in line
            ]
            found[int(head[1])] = head[2], [call.rpartition("(")[0] for call in calls]
    return found


def test_goroutines_are_those_of_the_traceback(program):
    with running(program, "p") as process:
        done = sfsample("dump", "-p", process.pid, "--timeout", HANG_S, "--json")
        assert done.code == 0, done.err
        process_json = json.loads(done.out)["processes"][0]
        mine = {
            goroutine["id"]: (goroutine["state"], [frame["function"] for frame in goroutine["frames"]])
            for goroutine in process_json["goroutines"]
        }
        created = {goroutine["id"]: goroutine["created_by"] for goroutine in process_json["goroutines"]}
        assert created[1] is None
        assert {"main.park", "runtime.createfing"} & {by["function"] for by in created.values() if by}
        text = sfsample("dump", "-p", process.pid, "--timeout", HANG_S).out.decode()
        assert_untraced(process.pid)
        assert process.poll() is None
        process.send_signal(signal.SIGQUIT)
        theirs = goroutines_of_traceback(process.stderr.read().decode())
        process.wait(HANG_S)
    assert mine == theirs
    assert f"=> {len(theirs)} goroutines: " in text
    assert "5 goroutines: chan receive\n" in text
