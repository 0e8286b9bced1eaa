"""`sfsample watch`: a slice every so often, for months.

Law: slot k begins at start + k * every.  The target is looked up anew for every slice; nothing is kept from
one slice to the next but the schedule, and which missing names have been told, which is done once.  A file
appears complete or not at all.  After the first slice no failure of one slice ends the watch.  SIGTERM ends
the slice, writes it, and exits 0.
"""

import os
import re
import time
from argparse import Namespace
from collections.abc import Callable, Iterator

from sfsample import api
from sfsample.cli.console import Interrupt, Output, targets
from sfsample.cli.record import check_begun, rate, sample
from sfsample.cli.symbol_flags import naming
from sfsample.cli.terminal import say
from sfsample.cli.values import suffix_of
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.process.find import start_time
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.recording.summary import unnamed_lines
from sfsample.report.from_profile import FrameNamer
from sfsample.report.writers.formats import FORMATS

_DOZE_S = 0.2
_STAMP = "%Y%m%dT%H%M%SZ"
_LONGEST_LABEL = 100
_MOST_TOLD = 1000


def run(arguments: Namespace) -> int:
    """Record slices until told to stop, or until the processes given by -p have ended."""
    with Interrupt() as interrupt:
        born = {pid: start_time(pid) for pid in arguments.pid or ()}
        _make_directory(arguments.output_dir)
        written, told = 0, set[str]()
        for left in slots(arguments.every, interrupt):
            try:
                _slice(arguments, _targets(arguments, born), min(arguments.slice, left), interrupt, told)
                written += 1
            except NoSuchProcess as gone:
                _tell(gone, quiet=arguments.quiet or bool(arguments.pid))
            except SfsampleError as failure:
                if not written:
                    raise
                _tell(failure, quiet=False)
            if arguments.pid and not any(map(_lives, born, born.values())):
                if not written:
                    raise NoSuchProcess(arguments.pid[0], f"process has ended: {_list(born)}")
                if not arguments.quiet:
                    say(f"sfsample: process has ended: {_list(born)}")
                break
    return 0


def slots(
    every: float,
    should_stop: Callable[[], bool],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[float]:
    """Wait for slot after slot; yield how many seconds are left of it.

    A slot that is less than half over is begun late (one slice follows another without a gap when --for
    equals --every); one that is more than half over is missed.
    """
    start, slot = now(), 0
    while True:
        while not should_stop() and (left := start + slot * every - now()) > 0:
            sleep(min(left, _DOZE_S))
        if should_stop():
            return
        yield start + (slot + 1) * every - now()
        slot = max(slot + 1, round((now() - start) / every))


def _lives(pid: int, born: int) -> bool:
    """Whether it is still the process it was; a recycled pid has another start time."""
    try:
        return start_time(pid) == born
    except NoSuchProcess:
        return False


def _targets(arguments: Namespace, born: dict[int, int]) -> list[int]:
    pids = [pid for pid in targets(arguments) if pid not in born or _lives(pid, born[pid])]
    if not pids:
        raise NoSuchProcess(arguments.pid[0], f"process has ended: {_list(born)}")
    return pids


def _list(pids: dict[int, int]) -> str:
    return ", ".join(map(str, pids))


def _tell(failure: SfsampleError, *, quiet: bool) -> None:
    if not quiet:
        say(f"sfsample: {failure}", *(f"  {line}" for line in failure.help))


def _make_directory(directory: str) -> None:
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as failure:
        raise SfsampleError(f"cannot write: {directory or repr('')}: {failure.strerror}",
                            "choose another --output-dir") from None  # fmt: skip


def _slice(
    arguments: Namespace, pids: list[int], duration: float, interrupt: Interrupt, told: set[str]
) -> None:
    label, suffix = _label(arguments), suffix_of(arguments.format)
    path = _free_path(arguments.output_dir, label, suffix)
    output = Output(path)
    try:
        profile = Profile(rate(arguments), timeline=FORMATS[arguments.format].timeline)
        sample(arguments, pids, duration, interrupt, profile=profile)
        check_begun(profile.stats, pids)
        namer = api.symbolizer(profile, naming(arguments))
        output.write(api.render(api.named(profile, namer), arguments.format, threads=arguments.threads))
    finally:
        output.discard()
    if not arguments.quiet:
        unnamed = unnamed_lines(_untold(namer, told), verbose=arguments.verbose)
        more = [*profile.stats.failure, *unnamed]
        say(f"sfsample: {path}: {_outcome(profile.stats)}", *(f"  {line}" for line in more))
    if arguments.keep:
        _forget_old(arguments.output_dir, label, suffix, arguments.keep)


def _untold(namer: FrameNamer, told: set[str]) -> list[str]:
    """Return where names are missing and what could not be read, unless `told` has it; note it there."""
    if len(told) > _MOST_TOLD:
        told.clear()
    causes = {f"{one.where}: {one.why}": str(one) for one in namer.unnamed()}
    causes |= {problem: problem for problem in namer.problems}
    new = [text for cause, text in causes.items() if cause not in told]
    told.update(causes)
    return new


def _outcome(stats: Stats) -> str:
    failed, truncated = stats.captures[Capture.FAILED], stats.samples - stats.stacks[StopReason.OUTERMOST]
    losses = [
        (stats.late_ticks, "ticks missed"),
        (failed, "captures failed"),
        (truncated, "stacks truncated"),
    ]
    return ", ".join([f"{stats.samples} samples", *(f"{count} {what}" for count, what in losses if count)])


def _label(arguments: Namespace) -> str:
    name = arguments.name or arguments.unit or "-".join(map(str, dict.fromkeys(arguments.pid)))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:_LONGEST_LABEL] or "target"


def _free_path(directory: str, label: str, suffix: str) -> str:
    """Name the slice after the time; when the clock was set back, after the next second that is free."""
    second = int(time.time())
    while True:
        path = os.path.join(directory, f"{label}-{time.strftime(_STAMP, time.gmtime(second))}{suffix}")
        if not os.path.lexists(path):
            return path
        second += 1


def _forget_old(directory: str, label: str, suffix: str, keep: int) -> None:
    """Delete our own oldest files of this label and format; their names sort by time."""
    ours = re.compile(re.escape(label) + r"-\d{8}T\d{6}Z" + re.escape(suffix))
    try:
        for name in sorted(filter(ours.fullmatch, os.listdir(directory)))[:-keep]:
            os.unlink(os.path.join(directory, name))
    except OSError as failure:
        say(f"sfsample: cannot delete: {failure.filename}: {failure.strerror}")
