"""Python frames of threads that wait are those that the program itself states (sys._current_frames).

SFSAMPLE_TEST_PYTHONS adds other interpreters: paths with colons between them.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsample.process.process import LiveProcess
from sfsample.process.vm import read_memory
from sfsample.python.chain import PythonFrame, runs
from sfsample.python.code_objects import CodeObjects
from sfsample.python.find import Interpreter, find_interpreter
from sfsample.python.threads import thread_states
from tests.live.targets import assert_untraced

pytestmark = pytest.mark.live

PROGRAM = Path(__file__).parents[1] / "data/python_target.py"
_GIVEN = filter(None, os.environ.get("SFSAMPLE_TEST_PYTHONS", "").split(":"))
_USUAL = (path for path in (sys.executable, "/usr/bin/python3") if Path(path).exists())
PYTHONS = sorted({Path(path).resolve() for path in (*_USUAL, *_GIVEN)})


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
def started(python: Path) -> "Iterator[tuple[subprocess.Popen[bytes], dict[str, list[list[object]]]]]":
    """Start the program; yield it and the stacks of its waiting threads by thread id, innermost frame
    first."""
    with subprocess.Popen([python, PROGRAM], stdout=subprocess.PIPE, stdin=subprocess.PIPE) as target:
        try:
            assert target.stdout is not None
            yield target, json.loads(target.stdout.readline())
        finally:
            target.kill()


def frames_of(
    memory: Remote, interpreter: Interpreter, codes: CodeObjects, state: int
) -> Iterator[list[object]]:
    """Yield file, qualified name and line of each frame of a thread state."""
    found: list[PythonFrame] = []
    for run in runs(memory, interpreter.layout, state):
        assert not run.missing
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
