"""`sfsample replay`: unwinds a saved stack again, and shows the result beside the one of the recording.

A replay that needs a file which this machine does not have is an error, never a shorter stack.
"""

from argparse import Namespace

from sfsample.cli.output_file import Output
from sfsample.cli.symbol_flags import symbol_options
from sfsample.cli.terminal import printable_lines
from sfsample.errors import FormatError, SfsampleError
from sfsample.report.json_text import json_text
from sfsample.saved_stacks.format import SavedStack, from_json
from sfsample.saved_stacks.replay import replay
from sfsample.saved_stacks.text import replay_json, replay_text
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import choose_steppers

_MAX_FILE_CHARACTERS = 32 << 20
_HELP = "give a file that `sfsample record --save-bad DIR` wrote"


def run(arguments: Namespace) -> int:
    """Read, unwind, write; return the exit code."""
    output = Output(arguments.output)
    saved = _load(arguments.file)
    replayed = replay(
        saved,
        sysroot=arguments.sysroot.rstrip("/"),
        debug_dirs=tuple(arguments.debug_dir),
        steppers=choose_steppers(arguments.unwind),
        max_frames=arguments.max_frames,
    )
    symbolizer = Symbolizer(symbol_options(arguments))
    if arguments.json:
        output.write(json_text(replay_json(saved, replayed, symbolizer), indent=1))
    else:
        output.write(printable_lines(replay_text(saved, replayed, symbolizer)))
    return 0


def _load(path: str) -> SavedStack:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return from_json(file.read(_MAX_FILE_CHARACTERS), path)
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path}: {failure.strerror}", _HELP) from None
    except FormatError as damage:
        raise SfsampleError(f"cannot replay: {path}: {damage.what}", _HELP) from None
