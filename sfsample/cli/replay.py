"""`sfsample replay`: a stack that was saved, unwound again, here.

Law: what was found then is shown beside what is found now; a replay that needs a file which is not here is an
error, never a shorter stack.
"""

from argparse import Namespace

from sfsample.cli.console import Output, steppers
from sfsample.cli.symbol_flags import naming
from sfsample.cli.terminal import printable
from sfsample.errors import FormatError, SfsampleError
from sfsample.report.json_text import json_text
from sfsample.saved_stacks.format import SavedStack, from_json
from sfsample.saved_stacks.replay import replay
from sfsample.saved_stacks.text import replay_json, replay_text
from sfsample.symbolize.symbolizer import Symbolizer

_MOST = 32 << 20
_GIVE = "give a file that `sfsample record --save-bad DIR` wrote"


def run(arguments: Namespace) -> int:
    """Read, unwind, write; return the exit code."""
    output = Output(arguments.output)
    try:
        saved = _load(arguments.file)
        found = replay(
            saved,
            sysroot=arguments.sysroot.rstrip("/"),
            debug_dirs=tuple(arguments.debug_dir or ()),
            steppers=steppers(arguments),
            max_frames=arguments.max_frames,
        )
        names = Symbolizer(naming(arguments))
        if arguments.json:
            output.write(json_text(replay_json(saved, found, names), indent=1))
        else:
            output.write("".join(f"{printable(line)}\n" for line in replay_text(saved, found, names)))
    finally:
        output.discard()
    return 0


def _load(path: str) -> SavedStack:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return from_json(file.read(_MOST), path)
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path}: {failure.strerror}", _GIVE) from None
    except FormatError as damage:
        raise SfsampleError(f"cannot replay: {path}: {damage.what}", _GIVE) from None
