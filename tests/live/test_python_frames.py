"""Python frames of threads that wait are those that the program itself states (sys._current_frames)."""

import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sfsample
from sfsample.api import named
from sfsample.core.python_view import PythonView
from sfsample.core.stack import Stack, StopReason
from sfsample.errors import BadInput
from sfsample.modules.module import Module
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.process import LiveProcess
from sfsample.process.vm import read_memory
from sfsample.runtimes.cpython.chain import PythonFrame, runs
from sfsample.runtimes.cpython.code_objects import CodeObjects
from sfsample.runtimes.cpython.find import Interpreter, find_interpreter
from sfsample.runtimes.cpython.threads import thread_states
from sfsample.unwind.unwinder import Unwinder
from tests.live.cli_runner import in_this_process
from tests.live.cli_runner import sfsample as run_cli
from tests.live.pythons import PYTHONS
from tests.live.targets import assert_untraced, states, wait_until

pytestmark = [pytest.mark.live]

DATA = Path(__file__).parents[1] / "data"
SPIN = "def spin(ready):\n    ready()\n    while True: pass\n"
MAIN = (
    "import sys\nsys.path.insert(0, {!r})\nfrom {} import app\napp.spin(lambda: print('spins', flush=True))\n"
)


class Remote:
    """The memory of a process, read now."""

    byteorder = "little"

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def read(self, address: int, size: int) -> bytes | None:
        return read_memory(self._pid, address, size)

    def word(self, address: int) -> int | None:
        data = self.read(address, 8)
        return None if data is None else int.from_bytes(data, "little")


@contextmanager
def started(
    python: Path, program: str = "python_target.py"
) -> "Iterator[tuple[subprocess.Popen[bytes], Any]]":
    """Start a program; yield it and what it prints: the stacks of its waiting threads, or its call graph."""
    with subprocess.Popen([python, DATA / program], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            yield target, json.loads(target.stdout.readline())
        finally:
            target.kill()


def recorded(pid: int, samples: int, *, rate: float = 99, **options: Any) -> sfsample.Profile:
    """Record until there are so many samples, however slow the machine is."""
    profile = sfsample.Profile(rate)
    chosen = sfsample.RecordOptions(rate=rate, perf_events=False, **options)
    return sfsample.record(pid, None, chosen, profile=profile,
                           should_stop=lambda: profile.stats.samples >= samples)  # fmt: skip


def frames_of(
    memory: Remote, interpreter: Interpreter, codes: CodeObjects, state: int
) -> Iterator[list[object]]:
    """Yield file, qualified name and line of each frame of a thread state."""
    found: list[PythonFrame] = []
    for run in runs(memory, interpreter.layout, state):
        assert run.mark  # 0: the chain broke
        found += run.frames
    for frame, code in zip(found, codes.look_up([frame.code for frame in found]), strict=True):
        assert code is not None
        if code.qualname:
            unit = (frame.instruction - frame.code - interpreter.layout.code_bytes) // 2
            yield [code.filename, code.qualname, code.line(unit)]


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_frames_are_those_that_the_program_states(python):
    with started(python) as (target, truth):
        memory = Remote(target.pid)
        process = LiveProcess(target.pid, attach=False)
        interpreter = find_interpreter(process.modules, memory.read)
        assert interpreter is not None
        codes = CodeObjects(interpreter.layout, lambda pieces: [memory.read(*piece) for piece in pieces])
        states = thread_states(interpreter, memory.read)
        assert {*truth} < {str(tid) for tid in states}  # the main thread waits for its input
        for tid, expected in truth.items():
            [state] = states[int(tid)]
            assert [*frames_of(memory, interpreter, codes, state)] == expected
        process.close()
        assert_untraced(target.pid)


def test_program_without_python_has_no_interpreter():
    with subprocess.Popen(["sleep", "60"]) as target:
        process = LiveProcess(target.pid, attach=False)
        assert find_interpreter(process.modules, Remote(target.pid).read) is None
        process.close()
        target.kill()


def test_interpreter_that_cannot_be_read_yet_is_found_later():
    with started(PYTHONS[0]) as (target, _):
        process, without = LiveProcess(target.pid, attach=False), set[Module]()
        with pytest.raises(BadInput, match="cannot be read"):
            find_interpreter(process.modules, lambda *_: None, without)
        assert find_interpreter(process.modules, Remote(target.pid).read, without) is not None
        process.close()


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_recording_has_the_stacks_that_the_program_states(python):
    with started(python) as (target, truth):
        report = named(recorded(target.pid, 3 * len(truth), mode="wall", python=PythonView.ONLY))
        found = {str(report.threads[stack.thread].tid): stack for stack in report.stacks}
        for tid, expected in truth.items():
            frames = [frame for at in found[tid].frames if (frame := report.frames[at]).kind != "w"]
            assert [[frame.file, frame.function, frame.line] for frame in frames] == expected
            assert {frame.kind for frame in frames} == {"p"}
        assert_untraced(target.pid)


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_dump_has_the_stacks_that_the_program_states(python):
    with started(python) as (target, truth):
        done = in_this_process("dump", "-p", target.pid, "--json")
        [process] = json.loads(done.out)["processes"]
        found = {str(thread["tid"]): thread for thread in process["threads"]}
        for tid, expected in truth.items():
            stack = [[frame["file"], frame["function"], frame["line"]] for frame in found[tid]["python"]]
            assert stack == expected
            merged = [frame for frame in found[tid]["frames"] if frame["found"] == "python"]
            assert [frame["function"] for frame in merged] == [frame[1] for frame in expected]
        text = run_cli("dump", "-p", target.pid).out.decode()
        assert text.count("  py0   Condition.wait  ") >= 2  # those alike are a group, the deep one is none
        assert_untraced(target.pid)


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_running_program_has_only_possible_stacks(python):
    with started(python, "python_busy.py") as (target, calls):
        report = named(recorded(target.pid, 500, rate=500, python=PythonView.ONLY))
        whole = cut = 0
        for stack in report.stacks:
            frames = [report.frames[at] for at in reversed(stack.frames)]
            functions = [frame.function for frame in frames]
            if stack.stop_reason != "outermost" or frames[0].kind != "p":  # not all of it was copied
                cut += stack.weights[0]
                continue
            whole += stack.weights[0]
            assert functions[0] in ("<module>", "Thread._bootstrap"), functions
            for caller, callee in pairwise(functions):
                assert callee in calls[caller], functions
        assert whole > 20 * cut
        assert_untraced(target.pid)


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_thread_that_starts_others_keeps_its_frames(python):
    with started(python, "python_threads.py") as (target, _):
        report = named(recorded(target.pid, 500, rate=500, python=PythonView.ONLY))
        native, python_only = 0, 0
        for stack in report.stacks:
            has_python = report.frames[stack.frames[-1]].kind == "p"
            assert has_python or report.threads[stack.thread].tid != target.pid
            python_only += stack.weights[0] * has_python
            native += stack.weights[0] * (not has_python)
        assert python_only > 10 * native  # threads that begin or end have none
        assert_untraced(target.pid)


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_function_that_was_dropped_is_not_taken_for_the_next_one(python):
    with started(python, "python_dropped.py") as (target, _):
        report = named(recorded(target.pid, 500, rate=500, python=PythonView.ONLY))
        named_callers = named_made = 0
        for stack in report.stacks:
            functions = [report.frames[at].function or "" for at in stack.frames]
            made = [function.split("_")[-1] for function in functions if function.startswith("made_for_")]
            callers = [function.split("_")[-1] for function in functions if function.startswith("caller_")]
            assert made in ([], callers), functions
            named_callers += stack.weights[0] * bool(callers)
            named_made += stack.weights[0] * bool(made)
        assert named_made > named_callers // 2  # though their texts are gone before they are read
        assert_untraced(target.pid)


def test_views_show_the_interpreter_or_not():
    with started(PYTHONS[0], "python_busy.py") as (target, _):
        texts = {}
        for view in PythonView:
            texts[view] = sfsample.folded(recorded(target.pid, 100, rate=300, python=view))
        loop = ";_PyEval_EvalFrameDefault"
        assert "leaf (python_busy.py:" in texts[PythonView.AUTO]
        assert "__libc_start_main" in texts[PythonView.AUTO]
        # the first activation has no Python frame while it begins or ends, so its native frames are shown
        native = [line for line in texts[PythonView.ONLY].splitlines() if "__libc_start_main" in line]
        assert all(line.rpartition(" ")[0].endswith(loop) for line in native)
        assert "leaf (python_busy.py:" in texts[PythonView.ONLY]
        assert "leaf (python_busy.py:" in texts[PythonView.ALL]
        assert loop in texts[PythonView.ALL]
        whole = [line for line in texts[PythonView.AUTO].splitlines() if "[truncated" not in line]
        assert whole
        # an activation that begins or ends has no Python frame just then: it is the last one
        assert all(".py:" not in line.partition(loop)[2] for line in whole)
        assert "python_busy.py" not in texts[PythonView.OFF]


PERF_SUPPORT = [
    (python, option)
    for python in PYTHONS
    for option, since in (("perf", 12), ("perf_jit", 13))
    if int(python.name.removeprefix("python3.").rstrip("t")) >= since
]


@pytest.mark.parametrize(("python", "option"), PERF_SUPPORT, ids=str)
def test_trampolines_for_perf_are_frames_of_the_interpreter(python, option):
    command = [python, "-X", option, DATA / "python_busy.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline()
            profile = recorded(target.pid, 100, rate=300)
            shown = sfsample.folded(profile)
            native = sfsample.folded(recorded(target.pid, 20, rate=300, python=PythonView.OFF))
        finally:
            target.kill()
            for left in (f"perf-{target.pid}.map", f"jit-{target.pid}.dump"):
                Path("/tmp", left).unlink(missing_ok=True)  # noqa: S108 - the documented place
    between = [line.partition(" (python_busy.py:")[2].rpartition(" (python_busy.py:")[0]
               for line in shown.splitlines()]  # fmt: skip
    assert any(between)
    assert not [line for line in between if "py::" in line or ";[0x" in line]
    if option == "perf":
        assert "py::leaf:" in native
    assert not [problem for problem in profile.stats.problems if "jit-" in problem]


def test_timers_are_not_chosen_where_they_would_show_no_python():
    with started(PYTHONS[0], "python_busy.py") as (target, _):
        stats = sfsample.record(target.pid, 1.0).stats
        assert stats.timers_since_s is None


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_dump_says_which_thread_holds_the_gil(python):
    with started(python, "python_gil.py") as (target, ids):
        wait_until(lambda: states(target.pid) == {"S"}, "all threads wait")
        expected = {tid: "holds" if name == "holds" else "waits" for name, tid in ids.items()}

        def all_are_seen() -> bool:
            # a thread that waits for the GIL looks every 5 ms whether it is free, and does not wait just then
            [process] = json.loads(in_this_process("dump", "-p", target.pid, "--json").out)["processes"]
            found = {thread["tid"]: thread["gil"] for thread in process["threads"]}
            assert all(found[tid] in (state, "none" if state == "waits" else state)
                       for tid, state in expected.items()), found  # fmt: skip
            return found == expected

        wait_until(all_are_seen, "both are seen to wait")
        said = f"=> the GIL: 2 threads (Thread-*) wait for the main thread ({target.pid}), which "
        wait_until(lambda: said in run_cli("dump", "-p", target.pid).out.decode(), "both are seen to wait")
        assert_untraced(target.pid)


def places(stack: Stack) -> list[tuple[int, int]]:
    return [(frame.pc, frame.sp) for frame in stack.frames]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="it needs a call that pushes its return address")
@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_stack_that_breaks_goes_on_behind_the_evaluation_loop(python):
    with started(python) as (target, truth):
        process = LiveProcess(target.pid, attach=False)
        unwinder = Unwinder(process.modules)
        capturer = ThreadCapturer(process, unwinder, stop=False, python=True)
        broken = 0
        for thread in map(process.thread, map(int, truth)):
            captured = capturer.capture(thread, "S")
            assert isinstance(captured, CapturedStack)
            assert captured.python is not None
            assert capturer.python is not None
            assert capturer.python._runtime is not None
            whole, placer = captured.stack.frames, capturer.python._runtime._placer
            for index, _ in captured.python.activations:
                last = whole[index]._replace(cfa=None)
                cut = Stack((*whole[:index], last), StopReason.REGISTER_UNKNOWN)
                found = capturer.python.over_breaks(thread, captured.snapshot, cut, unwinder.resume)
                assert places(found) == places(captured.stack)
                # as in a process that has shown no whole stack yet: found again, or not, but nothing else
                placer.distance, known = None, placer.distance
                found = capturer.python.over_breaks(thread, captured.snapshot, cut, unwinder.resume)
                assert places(found) in (places(captured.stack), places(cut))
                placer.distance = known
                broken += 1
        assert broken
        process.close()
        assert_untraced(target.pid)


FORKED = """
import ctypes, os, sys
def wait(): print(os.getpid(), flush=True); sys.stdin.read()
def serve(): wait()
if ctypes.PyDLL(None).fork() == 0: serve()
else: os.wait()
"""


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_child_that_c_code_has_forked_has_its_frames(python):
    """The interpreter still has the id of the parent's main thread, as in the workers of uWSGI."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([python, "-c", FORKED], **pipes) as target:
        child = int(target.stdout.readline())
        wait_until(lambda: states(child) == {"S"}, "the child waits")
        done = run_cli("dump", "-p", child, "--json")
        [process] = json.loads(done.out)["processes"]
        [thread] = process["threads"]
        assert [frame["function"] for frame in thread["python"]] == ["wait", "serve", "<module>"]
        assert thread["gil"] == "none"
        assert_untraced(child)
        target.stdin.close()


ELSEWHERE = """
import os, sys, threading
try: import _xxsubinterpreters as interpreters
except ImportError: import _interpreters as interpreters
made = interpreters.create()
code = "import os\\ndef inside(): os.write(1, b'ready\\\\n'); os.read(0, 1)\\ninside()"
def run(): interpreters.run_string(made, code)
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_interpreter_that_another_thread_has_made_is_in_the_thread_that_runs_it(python):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([python, "-c", ELSEWHERE], **pipes) as target:
        target.stdout.readline()
        wait_until(lambda: states(target.pid) == {"S"}, "both threads wait")
        done = run_cli("dump", "-p", target.pid, "--json")
        [main, other] = json.loads(done.out)["processes"][0]["threads"]
        assert [frame["function"] for frame in other["python"]][:3] == ["inside", "<module>", "run"]
        assert "inside" not in [frame["function"] for frame in main["python"]]
        assert [thread["stop_reason"] for thread in (main, other)] == ["outermost"] * 2
        assert_untraced(target.pid)
        target.stdin.close()


LATE = """
import ctypes, os, sys, threading
libc = ctypes.CDLL(None)
libc.__register_atfork(None, None, libc.getchar, None)  # called in the child, within fork()
def serve(): print(flush=True); sys.stdin.read()
def start():
    if os.fork() == 0: serve()
    else: os.wait()
threading.Thread(target=start).start()
"""


def children(pid: int) -> list[int]:
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text(encoding="ascii").split()]


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_child_that_is_seen_before_the_interpreter_knows_of_the_fork_has_its_frames(python):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([python, "-c", LATE], **pipes) as target:
        wait_until(lambda: children(target.pid), "the child is there")
        [child] = children(target.pid)
        wait_until(lambda: states(child) == {"S"}, "the child waits in fork")
        process = LiveProcess(child, attach=False)
        capturer = ThreadCapturer(process, Unwinder(process.modules), stop=False, python=True)
        for _ in range(2):
            capturer.capture(process.thread(child), "S")
        target.stdin.write(b"\n")
        target.stdin.flush()
        target.stdout.readline()
        wait_until(lambda: states(child) == {"S"}, "the child waits for its input")
        for _ in range(2):  # the first one finds out
            captured = capturer.capture(process.thread(child), "S")
        assert isinstance(captured, CapturedStack)
        assert captured.python is not None
        found = [place.function for _, run in captured.python.activations for place in run]
        assert found[:2] == ["serve", "start"]
        process.close()
        target.stdin.close()


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.name)
@pytest.mark.parametrize("package", ["views", "flask"])
def test_files_of_one_name_are_told_apart(python: Path, package: str, tmp_path: Path) -> None:
    """Paths of the program's own files begin at the script's directory, those of a package at its parent."""
    installed = tmp_path / "venv/lib/python3/site-packages"
    for directory in (tmp_path / "views", installed / "flask"):
        directory.mkdir(parents=True)
        (directory / "__init__.py").touch()
        (directory / "app.py").write_text(SPIN)
    (tmp_path / "app.py").write_text(MAIN.format(str(installed), package))
    with subprocess.Popen([python, "app.py"], cwd=tmp_path, stdout=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            assert target.stdout.readline() == b"spins\n"
            words = ("-d", "0.5", "--python", "only", "-q", "--no-perf-events", "--mode", "wall")
            done = run_cli("record", target.pid, *words)
            assert f";<module> (app.py:1);spin ({package}/app.py:1)" in done.out.decode(), done.err.decode()
            assert_untraced(target.pid)
        finally:
            target.kill()
