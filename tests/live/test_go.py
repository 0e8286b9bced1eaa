"""Stacks of busy Go programs without symbols: they are whole, and each call leads to the frame below.

A direct call before a return address states which function it calls.  That is the proof of an edge, and needs
no second tool.
"""

import lzma
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import Found, StopReason
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.capture_running import ANY_THREAD
from sfsample.process.process import LiveProcess
from sfsample.unwind.unwinder import Unwinder
from tests.live.targets import ARCH, HANG_S, LineReader, assert_untraced, wait_until_busy

pytestmark = [pytest.mark.live, pytest.mark.skipif(ARCH is not AMD64, reason="the programs are for x86-64")]

FIXTURES = Path(__file__).parents[1] / "fixtures" / "go"
# functions that jump to the function that they were called for
JUMP = {"runtime.systemstack", "runtime.morestack_noctxt", "runtime.newstack"}
CROSSING = {"runtime.systemstack", "runtime.morestack"}
STACKS = 300


@pytest.fixture(scope="module", params=["1.19", "1.24", "1.27"])
def go_program(request, tmp_path_factory):
    """Run a Go program; yield its pid."""
    path = tmp_path_factory.mktemp("go") / "busy"
    path.write_bytes(lzma.decompress((FIXTURES / f"busy-{request.param}.xz").read_bytes()))
    path.chmod(0o755)
    with subprocess.Popen([path], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert LineReader(process.stderr.fileno()).line() == "ready"
        wait_until_busy(process.pid)
        yield process.pid
        assert_untraced(process.pid)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(HANG_S) == 0


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
    function = module.tables.go.function_at(module.vaddr(pc)) if module else None
    return (function.name, module.address(function.entry)) if function else ("", 0)


def wrong_edges(taken):
    """Yield each call that leads to another function than that of the frame below it."""
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
            or called.rpartition(".")[2] == name.rpartition(".")[2]
        )
        if target != entry and not is_tail:
            yield called, name


def test_stacks_are_whole_and_every_edge_is_a_call(go_program):
    reasons, wrong, names, founds = Counter(), Counter(), Counter(), Counter()
    for number, taken in enumerate(captured(go_program)):
        reasons[taken.stack.stop_reason] += 1
        wrong.update(wrong_edges(taken))
        names.update(
            {function_of(m, f.pc)[0] for f, m in zip(taken.stack.frames, taken.modules, strict=True)}
        )
        founds.update(frame.found for frame in taken.stack.frames)
        if number >= STACKS and all(names[name] for name in CROSSING):
            break
    assert wrong == {}
    assert reasons[StopReason.OUTERMOST] >= 0.99 * reasons.total(), reasons
    assert {"main.work", "runtime.goexit"} <= names.keys()
    assert founds.keys() <= {Found.CONTEXT, Found.GO, Found.SIGNAL_FRAME, Found.CODE}
