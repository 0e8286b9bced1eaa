"""Follows the Python frames of a thread in copies of its memory, and splits them into runs.

A run belongs to one activation of the evaluation loop.  What ends it lies on the C stack, inside the native
frame of that activation: a sentinel frame from 3.12 on, the `_PyCFrame` in 3.11.  So `Run.mark` is an address
by which the run finds its place among the native frames.

The memory is data of the target: the chain may be torn, may lead anywhere, or in a circle, as it often does
where the thread runs while it is read.  A chain that breaks goes on at the next mark that is known.  How long
a chain may be is up to the budget of the memory (`core.budget`).

Source: Include/internal/pycore_interpframe.h and Python/ceval.c of CPython 3.11 to 3.15.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.python.layout import Layout

TAGS = 0b11  # of the pointer to the code object, from 3.14 on


class PythonFrame(NamedTuple):
    """A frame of the interpreter: where it lies, its code object, and the address of its instruction.

    `previous` and `executable` are the words of its caller and of its code object, as the frame has them.
    """

    address: int
    code: int
    instruction: int
    previous: int = 0
    executable: int = 0


class Run(NamedTuple):
    """The Python frames of one activation of the evaluation loop, innermost first.

    `mark` is an address inside the native frame of the activation; 0: the chain broke before it was seen.
    `missing` is the address of a frame that is in no copy, behind the last one, or that was there already, as
    the chain is a circle; 0: there is none.
    """

    frames: tuple[PythonFrame, ...]
    mark: int
    missing: int = 0


def runs(memory: Memory, layout: Layout, thread_state: int) -> Iterator[Run]:
    """Yield the runs of a thread state, the innermost first; `memory` has what was copied in the pause."""
    start = memory.word(thread_state + layout.thread_frame)
    if layout.cframe_frame is None:
        yield from _by_sentinels(memory, layout, start or 0, base(memory, layout, thread_state))
    elif start:
        yield from _by_cframes(memory, layout, start)


def base(memory: Memory, layout: Layout, thread_state: int) -> int:
    """Return the address of the frame that ends each chain of 3.15, which is in no native frame; 0: none."""
    at = layout.thread_base
    return 0 if at is None else memory.word(thread_state + at) or 0


def resumed(memory: Memory, layout: Layout, sentinel: int, end: int = 0) -> Iterator[Run]:
    """Yield the runs of the activations around the one that has this sentinel (3.12 and later)."""
    yield from _by_sentinels(memory, layout, memory.word(sentinel + layout.previous) or 0, end)


def _by_sentinels(memory: Memory, layout: Layout, address: int, end: int = 0) -> Iterator[Run]:
    frames: list[PythonFrame] = []
    seen = {0, end}
    read, unpack, size, owner = memory.read, _unpacker(layout), layout.frame_bytes, layout.owner
    sentinels = layout.sentinel_owners
    while address not in seen:
        seen.add(address)
        data = read(address, size)
        if data is None:
            break
        frame = unpack(address, data)
        if data[owner] in sentinels:
            yield Run(tuple(frames), address)
            frames = []
        else:
            frames.append(frame)
        address = frame.previous
    missing = 0 if address == end else address
    if frames or missing:
        yield Run(tuple(frames), 0, missing)


def _by_cframes(memory: Memory, layout: Layout, cframe: int) -> Iterator[Run]:
    """Yield the runs of 3.11 and 3.12, whose thread state leads to a `_PyCFrame` on the C stack.

    For some instructions an activation that begins is linked already, and its `_PyCFrame` still has what lay
    there before.  It has no frame then: the caller of its outermost one would be the frame that runs outside.
    """
    assert layout.cframe_frame is not None  # noqa: S101 - the caller has looked
    assert layout.cframe_previous is not None  # noqa: S101
    outer = memory.word(cframe + layout.cframe_previous) or 0
    around = memory.word(outer + layout.cframe_frame)
    found = _activations(memory, layout, cframe)
    first = next(found, None)
    if first is not None and first.mark and around not in (None, _caller(memory, layout, first)):
        yield from _activations(memory, layout, outer)
        return
    if first is not None:
        yield first
    yield from found


def _caller(memory: Memory, layout: Layout, run: Run) -> int | None:
    """Return the address of the frame that has called the outermost frame of a run."""
    return memory.word(run.mark + layout.previous) if layout.is_entry is None else run.frames[-1].previous


def _activations(memory: Memory, layout: Layout, cframe: int) -> Iterator[Run]:
    assert layout.cframe_frame is not None  # noqa: S101 - the caller has looked
    assert layout.cframe_previous is not None  # noqa: S101
    address = memory.word(cframe + layout.cframe_frame) or 0
    if layout.is_entry is None:  # 3.12 has sentinels
        yield from _by_sentinels(memory, layout, address)
        return
    frames: list[PythonFrame] = []
    unpack, seen = _unpacker(layout), {0}
    while address not in seen:
        seen.add(address)
        data = memory.read(address, layout.frame_bytes)
        if data is None:
            break
        frames.append(unpack(address, data))
        address = frames[-1].previous
        if data[layout.is_entry]:
            yield Run(tuple(frames), cframe)
            frames = []
            cframe = memory.word(cframe + layout.cframe_previous) or 0
    if frames or address:
        yield Run(tuple(frames), 0, address)


@lru_cache(64)
def _unpacker(layout: Layout) -> Callable[[int, bytes], PythonFrame]:
    """Return what makes a frame of its address and its bytes."""
    words = Struct(f"<{layout.frame_bytes // 8}Q").unpack_from
    at = layout.executable // 8, layout.previous // 8, layout.instruction // 8

    def frame(address: int, data: bytes) -> PythonFrame:
        found = words(data)
        code = found[at[0]]
        return PythonFrame(address, code & ~TAGS, found[at[2]], found[at[1]], code)

    return frame
