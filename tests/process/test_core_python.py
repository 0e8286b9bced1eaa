"""A core file that claims more Python frames than it can hold is read to a limit, and that is said."""

from struct import pack_into

import pytest

from sfsample.core.budget import COPIED_NS
from sfsample.core.stack import Frame
from sfsample.formats.elf.image import ElfImage
from sfsample.process import core_threads
from sfsample.process.core_process import CoreProcess
from sfsample.process.core_threads import CorePython
from sfsample.runtimes.cpython.find import Interpreter
from sfsample.runtimes.cpython.layout import layout_of
from tests.builders.core_builder import Load, core, prstatus

LAYOUT = layout_of(0x030C01F0)
BASE, TID, SIZE = 0x10000, 7, 0x20000
OWNER, CFRAME, STATE, FRAME = BASE + 0x100, BASE + 0x200, BASE + 0x300, BASE + 0x1000
LIMIT = 500 * COPIED_NS
FRAMES = [Frame(1, BASE, BASE + 0x80, "context", True)]


def hostile() -> CoreProcess:
    """Return a core file with a thread that has a frame at each word."""
    data = bytearray(SIZE)

    def put(address: int, word: int) -> None:
        pack_into("<Q", data, address - BASE, word)

    put(BASE + LAYOUT.interpreters, OWNER)
    put(OWNER + LAYOUT.threads, STATE)
    put(CFRAME, FRAME)
    for frame in range(FRAME, BASE + SIZE - 0x100, 8):
        put(frame + LAYOUT.previous, frame + 8)
    put(STATE + LAYOUT.thread_interpreter, OWNER)
    put(STATE + LAYOUT.native_thread_id, TID)
    put(STATE + LAYOUT.thread_frame, CFRAME)
    return CoreProcess(ElfImage(core(prstatus(TID, bytes(27 * 8)), Load(BASE, bytes(data), flags=6)), "core"))


def test_frames_without_end_are_read_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    process, reads = hostile(), 0
    read = process.memory.read

    def counted(address: int, size: int) -> bytes | None:
        nonlocal reads
        reads += 1
        return read(address, size)

    monkeypatch.setattr(core_threads, "DUMP_NS", LIMIT)
    monkeypatch.setattr(core_threads, "find_interpreter", lambda *_: Interpreter(None, BASE, LAYOUT))  # type: ignore[arg-type]
    monkeypatch.setattr(process.memory, "read", counted)
    python = CorePython(process)
    assert python.problems == ()
    stack = python.stack(TID, FRAMES)
    assert stack is not None
    assert not stack.is_whole
    assert reads <= 500
    assert any(
        "the core file has more Python data than sfsample reads" in problem for problem in python.problems
    )
    assert python.stack(TID + 1, FRAMES) is None
