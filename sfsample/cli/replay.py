"""`sfsample replay`: unwinds a saved stack again; if a file is missing, it fails: no shorter stack."""

from collections.abc import Iterator

from sfsample.cli.environment import symbol_options
from sfsample.cli.file_options import ReplayCommand
from sfsample.cli.output_file import Output
from sfsample.core.filesystem import read_regular
from sfsample.core.printable import printable_lines
from sfsample.core.stack import StopReason
from sfsample.errors import FormatError, SfsampleError
from sfsample.modules.location import locate
from sfsample.saved_stacks.format import MAX_CHARACTERS, SavedStack, from_json
from sfsample.saved_stacks.replay import ReplayedStack, replay
from sfsample.symbolize.symbolizer import Symbolizer

_HELP = "give a file that `sfsample record --save-bad DIR` wrote"


def run(command: ReplayCommand) -> int:
    """Read, unwind, write; return the exit code."""
    saved = _load(command.file)
    replayed = replay(saved, sysroot=command.sysroot.rstrip("/"), debug_dirs=command.debug_dirs,
                      steppers=command.steppers, max_frames=command.max_frames)  # fmt: skip
    symbolizer = Symbolizer(symbol_options(command.names, command.debug_dirs, quiet=command.quiet))
    Output("-").write(printable_lines(_lines(saved, replayed, symbolizer)))
    return 0


def _load(path: str) -> SavedStack:
    try:
        return from_json(read_regular(path, MAX_CHARACTERS, streams=True).decode("utf-8", "replace"))
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path}: {failure.strerror}", _HELP) from None
    except FormatError as damage:
        raise SfsampleError(f"cannot replay: {path}: {damage.what}", _HELP) from None


def _lines(saved: SavedStack, replayed: ReplayedStack, symbolizer: Symbolizer) -> Iterator[str]:
    stack = replayed.stack
    yield f"thread {saved.tid} of {saved.process} ({saved.arch.name})"
    yield f"then: {_result(saved.stop_reason, saved.stopped_at, len(saved.frames))}"
    yield f"now:  {_result(stack.stop_reason, stack.stopped_at or '', len(stack.frames))}"
    yield from (f"problem: {text}" for text in replayed.problems)
    for depth, (frame, module) in enumerate(zip(stack.frames, replayed.modules, strict=True)):
        name = symbolizer.frames(locate(frame, module, 0))[-1]
        where = f"  ({module.path.rpartition('/')[2]})" if module and name.function else ""
        yield f"  #{depth:<3} {frame.pc:#018x}  {name.text}{where}  {frame.found}"


def _result(reason: str, stopped_at: str, frames: int) -> str:
    at = f" at {stopped_at}" if reason != StopReason.OUTERMOST and stopped_at else ""
    return f"{frames} frames, {reason}{at}"
