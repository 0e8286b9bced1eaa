"""Writes a replayed stack as text and as JSON: the result when the stack was saved, and the result now.

The symbolizer only adds names to frames that are already found.
"""

from collections.abc import Iterator
from typing import Any

from sfsample.core.stack import Frame, StopReason
from sfsample.dumping.json import frame_json
from sfsample.modules.location import locate
from sfsample.modules.module import Module
from sfsample.saved_stacks.format import SavedStack
from sfsample.saved_stacks.replay import ReplayedStack
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.symbolizer import Symbolizer


def replay_text(saved: SavedStack, replayed: ReplayedStack, symbolizer: Symbolizer) -> Iterator[str]:
    """Yield the lines, without newlines; not yet cleaned for a terminal."""
    stack = replayed.stack
    yield f"thread {saved.tid} of {saved.process} ({saved.arch.name})"
    yield f"then: {_result(saved.stop_reason, saved.stopped_at, len(saved.frames))}"
    yield f"now:  {_result(stack.stop_reason, stack.stopped_at or '', len(stack.frames))}"
    yield from (f"problem: {text}" for text in replayed.problems)
    for depth, (frame, module) in enumerate(zip(stack.frames, replayed.modules, strict=True)):
        name = _frame_names(symbolizer, frame, module)[-1]
        where = f"  ({module.path.rpartition('/')[2]})" if module and name.function else ""
        yield f"  #{depth:<3} {frame.pc:#018x}  {name.text}{where}  {frame.found}"


def _result(reason: str, stopped_at: str, frames: int) -> str:
    at = f" at {stopped_at}" if reason != StopReason.OUTERMOST and stopped_at else ""
    return f"{frames} frames, {reason}{at}"


def _frame_names(symbolizer: Symbolizer, frame: Frame, module: Module | None) -> tuple[NamedFrame, ...]:
    return symbolizer.frames(locate(frame, module, 0))


def replay_json(saved: SavedStack, replayed: ReplayedStack, symbolizer: Symbolizer) -> dict[str, Any]:
    """Return the document."""
    pairs = zip(replayed.stack.frames, replayed.modules, strict=True)
    frames = (frame for pair in pairs for frame in frame_json(*pair, _frame_names(symbolizer, *pair)))
    return {
        "schema": "sfsample.replay/1",
        "process": saved.process,
        "tid": saved.tid,
        "then": {
            "stop_reason": saved.stop_reason,
            "frames": [[hex(pc), found] for pc, found in saved.frames],
        },
        "now": {
            "stop_reason": str(replayed.stack.stop_reason),
            "stopped_at": replayed.stack.stopped_at,
            "frames": list(frames),
        },
        "problems": list(replayed.problems),
    }
