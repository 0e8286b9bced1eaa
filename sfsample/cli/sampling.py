"""Records processes as the flags of `record`, `watch` and `top` say, and decides whether it is a result."""

from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import fields

from sfsample import api
from sfsample.cli.terminal import progress_printer
from sfsample.core.snapshot import Capture
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.process.idle import why_idle
from sfsample.process.thread_files import open_many
from sfsample.recording.options import RecordOptions, StackStore
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.unwind.unwinder import choose_steppers

_MAX_SHOWN_PROBLEMS = 5


def record_processes(
    arguments: Namespace,
    pids: list[int],
    duration_s: float | None,
    should_stop: Callable[[], bool],
    *,
    profile: Profile,
    bad_stacks: StackStore | None = None,
    tell: Callable[[str], None] | None = None,
) -> None:
    """Record into `profile`, as the flags say; save incomplete stacks in `bad_stacks` if given."""
    open_many()
    given = vars(arguments)  # a flag that a command does not have keeps its default
    options = RecordOptions(
        steppers=choose_steppers(arguments.unwind),
        debug_dirs=tuple(arguments.debug_dir),
        bad_stacks=bad_stacks,
        **{field.name: given[field.name] for field in fields(RecordOptions) if field.name in given},
    )
    tell = tell or progress_printer(quiet=arguments.quiet)
    all_of = bool(arguments.pid or (arguments.name and arguments.command != "watch"))  # others come and go
    api.record(pids, duration_s, options, should_stop=should_stop, profile=profile, tell=tell, all_of=all_of)
    if not profile.stats.samples and not options.subprocesses:
        profile.stats.why_idle = why_idle(pids)


def check_result(stats: Stats, pids: Sequence[int]) -> None:
    """Raise when the recording is no result; without samples it is one if no thread ran, or after Ctrl-C."""
    check_begun(stats, pids)
    if stats.samples or stats.ended_by == "signal":
        return
    targets = ", ".join(map(str, pids))
    if stats.captures[Capture.FAILED]:
        problems = [text for text, _ in stats.problems.most_common(_MAX_SHOWN_PROBLEMS)]
        raise SfsampleError(f"nothing could be collected: every capture of {targets} failed", *problems)
    if stats.ticks == stats.late_ticks:
        raise SfsampleError(f"nothing could be collected: every tick for {targets} was missed",
                            "the machine is overloaded; try a lower --rate")  # fmt: skip


def check_begun(stats: Stats, pids: Sequence[int]) -> None:
    """Raise NoSuchProcess when every process ended before the first sample."""
    if stats.ended_by == "target" and stats.ticks <= 1 and not stats.samples:
        targets = ", ".join(map(str, pids))
        raise NoSuchProcess(pids[0], f"process has ended before the first sample: {targets}")
