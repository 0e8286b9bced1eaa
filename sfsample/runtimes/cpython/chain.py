"""Follows the Python frames of a thread in copies of its memory, and splits the frames into runs.

An activation is one running call of the evaluation loop; it has one native frame.  A run has the Python
frames of one activation.  The run ends with a structure on the C stack, inside that native frame: a sentinel
frame from 3.12 on, the `_PyCFrame` in 3.11.  `Run.mark` is the address of this structure.

Nuitka compiles Python functions to C.  A compiled function adds a frame to the chain that looks like the
frame of a generator, but no activation runs this frame.

The memory is data of the target: the chain may be torn, lead anywhere, or be a circle, most often if the
thread runs while sfsample reads.  The budget of the memory (`core.budget`) limits the length of a chain.

Source: Include/internal/pycore_interpframe.h and Python/ceval.c of CPython 3.11 to 3.15.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from sfsample.core.memory import Memory
from sfsample.runtimes.cpython.layout import Layout

OWNER_GENERATOR = 1  # value of the field `owner` in a frame that lies in a generator
TAGS = 0b11  # tag bits in the pointer to the code object, from 3.14 on; not part of the address


class PythonFrame(NamedTuple):
    """A frame of the interpreter (`struct _PyInterpreterFrame`)."""

    address: int
    code: int  # address of the code object
    instruction: int  # address of the instruction
    previous: int = 0  # address of the caller's frame
    executable: int = 0  # pointer to the code object, with tags: code = executable & ~TAGS


class Run(NamedTuple):
    """The Python frames of one activation of the evaluation loop."""

    frames: tuple[PythonFrame, ...]  # Python frames, the innermost first
    mark: int  # address inside the native frame of the activation; 0: unknown, as a frame was not copied
    is_compiled: bool = False  # True: frames of compiled functions, which no activation runs


def runs(memory: Memory, layout: Layout, thread_state: int) -> Iterator[Run]:
    """Yield the runs of a thread state, the innermost first; `memory` has the copies of the pause."""
    start = memory.word(thread_state + layout.thread_frame)
    if not layout.has_cframes:
        base = layout.thread_base  # field with the frame that ends every chain of 3.15
        yield from _runs(memory, layout, start or 0, (base and memory.word(thread_state + base)) or 0)
    elif start:
        yield from _by_cframes(memory, layout, start)


def _by_cframes(memory: Memory, layout: Layout, cframe: int) -> Iterator[Run]:
    """Yield the runs of 3.11 and 3.12, in which the thread state points to a `_PyCFrame` on the C stack.

    A new activation links its `_PyCFrame` some instructions before it fills the `_PyCFrame`.  In between, the
    `_PyCFrame` leads to old frames, and sfsample leaves the activation out.  sfsample recognizes old frames:
    the caller of the outermost frame is not the current frame of the next outer activation.
    """
    outer = memory.word(cframe + layout.cframe_frame + 8) or 0
    around = memory.word(outer + layout.cframe_frame)
    activations = _runs(memory, layout, memory.word(cframe + layout.cframe_frame) or 0, cframe=cframe)
    newest = next(activations, None)
    if newest is not None and newest.mark:
        has_sentinel = layout.is_entry is None
        caller = memory.word(newest.mark + layout.previous) if has_sentinel else newest.frames[-1].previous
        if around not in (None, caller):
            yield from _runs(memory, layout, around or 0, cframe=outer)
            return
    if newest is not None:
        yield newest
    yield from activations


def _runs(memory: Memory, layout: Layout, address: int, end: int = 0, cframe: int = 0) -> Iterator[Run]:
    """Yield the runs from the frame at `address` to the frame at `end`.

    The sentinel that follows a run is its mark.  In 3.11 a run ends with an entry frame; `cframe` is the
    mark of the first run, and the next outer `_PyCFrame` is the mark of the next run.
    """
    frames: list[PythonFrame] = []
    owners, seen = set[int](), {0, end}
    read, unpack, size, owner = memory.read, _unpacker(layout), layout.frame_bytes, layout.owner
    sentinels, entry = layout.sentinel_owners, layout.is_entry
    while address not in seen:
        seen.add(address)
        data = read(address, size)
        if data is None:
            break
        frame = unpack(address, data)
        address, mark = frame.previous, 0
        if data[owner] in sentinels:
            mark = frame.address
        else:
            frames.append(frame)
            owners.add(data[owner])
            if entry is not None and data[entry]:
                mark, cframe = cframe, memory.word(cframe + layout.cframe_frame + 8) or 0
        if mark:
            yield Run(tuple(frames), mark)
            frames, owners = [], set()
    is_broken = address not in (0, end)
    if frames or is_broken:
        yield Run(tuple(frames), 0, not is_broken and owners == {OWNER_GENERATOR})


@lru_cache(64)
def _unpacker(layout: Layout) -> Callable[[int, bytes], PythonFrame]:
    words = Struct(f"<{layout.frame_bytes // 8}Q").unpack_from
    at = layout.executable // 8, layout.previous // 8, layout.instruction // 8

    @lru_cache(1024)  # most frames are the same as in the last sample
    def frame(address: int, data: bytes) -> PythonFrame:
        values = words(data)
        code = values[at[0]]
        return PythonFrame(address, code & ~TAGS, values[at[2]], values[at[1]], code)

    return frame
