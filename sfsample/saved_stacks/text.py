"""A replayed stack as text and as JSON.

Law: says what was found when the stack was saved, and what is found now; names come last and decide nothing.
"""

from collections.abc import Iterator
from typing import Any

from sfsample.core.stack import Frame, StopReason
from sfsample.dumping.json import frame_json
from sfsample.modules.location import locate
from sfsample.modules.module import Module
from sfsample.saved_stacks.format import SavedStack
from sfsample.saved_stacks.replay import Replayed
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
    pairs = zip(found.stack.frames, found.modules, strict=True)
    frames = (one for pair in pairs for one in frame_json(*pair, _names(symbolizer, *pair)))
    return {
        "schema": "sfsample.replay/1",
        "process": saved.process,
        "tid": saved.tid,
        "then": {"stop_reason": saved.stop_reason, "frames": [[hex(pc), how] for pc, how in saved.frames]},
        "now": {
            "stop_reason": str(found.stack.stop_reason),
            "stopped_at": found.stack.stopped_at,
            "frames": list(frames),
        },
        "problems": list(found.problems),
    }
