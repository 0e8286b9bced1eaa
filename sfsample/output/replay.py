"""A replayed stack as text and as JSON.

Law: says what was found when the stack was saved, and what is found now; names come last and decide nothing.
"""

from collections.abc import Iterator
from typing import Any

from sfsample.model import Frame, StopReason
from sfsample.modules.module import Module
from sfsample.profile import locate
from sfsample.replay.offline import Replayed
from sfsample.replay.saved import SavedStack
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.symbolizer import Symbolizer


def replay_text(saved: SavedStack, found: Replayed, symbolizer: Symbolizer) -> Iterator[str]:
    """Yield the lines, without newlines; not yet cleaned for a terminal."""
    stack = found.stack
    yield f"thread {saved.tid} of {saved.process} ({saved.arch.name})"
    yield f"then: {_ending(saved.stop_reason, saved.stopped_at, len(saved.frames))}"
    yield f"now:  {_ending(stack.stop_reason, stack.stopped_at or '', len(stack.frames))}"
    yield from (f"problem: {text}" for text in found.problems)
    for depth, (frame, module) in enumerate(zip(stack.frames, found.modules, strict=True)):
        name = _names(symbolizer, frame, module)[-1]
        where = f"  ({module.path.rpartition('/')[2]})" if module and name.function else ""
        yield f"  #{depth:<3} {frame.pc:#018x}  {name.text}{where}  {frame.found}"


def _ending(reason: str, place: str, frames: int) -> str:
    at = f" at {place}" if reason != StopReason.OUTERMOST and place else ""
    return f"{frames} frames, {reason}{at}"


def _names(symbolizer: Symbolizer, frame: Frame, module: Module | None) -> tuple[NamedFrame, ...]:
    return symbolizer.frames(locate(frame, module, 0))


def replay_json(saved: SavedStack, found: Replayed, symbolizer: Symbolizer) -> dict[str, Any]:
    """Return the document."""
    frames = zip(found.stack.frames, found.modules, strict=True)
    return {
        "schema": "sfsample.replay/1",
        "process": saved.process,
        "tid": saved.tid,
        "then": {"stop_reason": saved.stop_reason, "frames": [[hex(pc), how] for pc, how in saved.frames]},
        "now": {
            "stop_reason": str(found.stack.stop_reason),
            "stopped_at": found.stack.stopped_at,
            "frames": [_frame_json(frame, module, symbolizer) for frame, module in frames],
        },
        "problems": list(found.problems),
    }


def _frame_json(frame: Frame, module: Module | None, symbolizer: Symbolizer) -> dict[str, Any]:
    name = _names(symbolizer, frame, module)[-1]
    return {
        "pc": hex(frame.pc),
        "sp": hex(frame.sp),
        "cfa": None if frame.cfa is None else hex(frame.cfa),
        "function": name.function,
        "offset": name.offset,
        "module": module.path if module else None,
        "module_offset": hex(module.vaddr(frame.pc)) if module else None,
        "build_id": module.build_id if module else None,
        "found": str(frame.found),
    }
