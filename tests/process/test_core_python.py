"""A core file that claims more Python frames than it can hold is read to a limit, and that is said."""

from struct import pack_into

import pytest

from sfsample.core.stack import Frame
from sfsample.formats.elf.image import ElfImage
from sfsample.process import core_python
from sfsample.process.core_process import CoreProcess
from sfsample.process.core_python import CorePython
from sfsample.python.find import Interpreter
from sfsample.python.layout import layout_of
from tests.builders.core_builder import Load, core, prstatus

LAYOUT = layout_of(0x030C01F0)
BASE, TID, THREADS = 0x10000, 7, 40
OWNER, CFRAME, FRAME, STATES = BASE + 0x100, BASE + 0x200, BASE + 0x300, BASE + 0x1000
LIMIT = 30_000_000  # bytes
FRAMES = [Frame(1, BASE, BASE + 0x80, "context", True)]


def hostile() -> CoreProcess:
    """Return a core file in which all states are of one thread, and their frames go round in a circle."""
    data = bytearray(0x10000)

    def put(address: int, word: int) -> None:
        pack_into("<Q", data, address - BASE, word)

    put(BASE + LAYOUT.interpreters, OWNER)
    put(OWNER + LAYOUT.threads, STATES)
    put(CFRAME, FRAME)
    put(FRAME + LAYOUT.previous, FRAME)
    for state in range(STATES, STATES + THREADS * 0x100, 0x100):
        put(state + LAYOUT.thread_next, state + 0x100)
        put(state + LAYOUT.thread_interpreter, OWNER)
        put(state + LAYOUT.native_thread_id, TID)
        put(state + LAYOUT.thread_frame, CFRAME)
    put(STATES + (THREADS - 1) * 0x100 + LAYOUT.thread_next, 0)
    return CoreProcess(ElfImage(core(prstatus(TID, bytes(27 * 8)), Load(BASE, bytes(data), flags=6)), "core"))


def test_circles_of_frames_are_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    process, bytes_read = hostile(), 0
    read = process.memory.read

    def counted(address: int, size: int) -> bytes | None:
        nonlocal bytes_read
        bytes_read += size
        return read(address, size)

    monkeypatch.setattr(core_python, "LEAST_SIZE", LIMIT)
    monkeypatch.setattr(core_python, "find_interpreter", lambda *_: Interpreter(None, BASE, LAYOUT))  # type: ignore[arg-type]
    monkeypatch.setattr(process.memory, "read", counted)
    python = CorePython(process)
    assert python.problems == ()
    stack = python.stack(TID, FRAMES)
    assert stack is not None
    assert not stack.is_whole
    assert bytes_read < LIMIT
    assert any("more of them than a file of its size can hold" in problem for problem in python.problems)
    assert python.stack(TID + 1, FRAMES) is None
