"""Turns the flags of `record`, `watch` and `top` into the options of a recording."""

from argparse import Namespace

from sfsample.cli.unwind_flag import chosen_steppers
from sfsample.recording.options import RecordOptions, StackStore

_SAME_NAMES = ("kernel", "max_frames", "max_overhead", "max_pause", "mode", "perf_events", "stack_bytes",
               "stop", "subprocesses")  # fmt: skip


def rate(arguments: Namespace) -> float:
    """Return the samples per second that --rate or --interval asks for."""
    return 1 / arguments.interval if arguments.interval else float(arguments.rate)


def record_options(arguments: Namespace, *, bad_stacks: StackStore | None = None) -> RecordOptions:
    """Return the options; a flag that a command does not have keeps its default."""
    given = {name: getattr(arguments, name) for name in _SAME_NAMES if hasattr(arguments, name)}
    return RecordOptions(
        rate=rate(arguments),
        steppers=chosen_steppers(arguments),
        debug_dirs=tuple(arguments.debug_dir or ()),
        bad_stacks=bad_stacks,
        **given,
    )
