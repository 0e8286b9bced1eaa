"""`sfsample record`: samples processes for a while, or starts and samples a program; writes the profile."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES

from sfsample import api
from sfsample.cli.chosen import chosen_pids
from sfsample.cli.environment import symbol_options
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.output_file import Output, as_asked, say_written
from sfsample.cli.record_options import RecordCommand
from sfsample.cli.terminal import Progress, emit, progress_printer, say
from sfsample.core.quantities import counted
from sfsample.errors import NoSuchProcess, SfsampleError, UsageError
from sfsample.process.priority import TURN_S, hurry
from sfsample.process.thread_files import open_many
from sfsample.process.tracer_thread import with_names
from sfsample.recording.profile import Profile
from sfsample.recording.stats import check_result
from sfsample.recording.summary import summary_lines
from sfsample.report.formats import FORMATS
from sfsample.report.json_text import json_text
from sfsample.report.waits import fold_idle, wait_lines

_TERMINATE_TIMEOUT_S = 5


def run(command: RecordCommand) -> int:
    """Record, write the profile, print the summary; return the exit code."""
    output = Output(command.output.path)
    stats_output = Output(command.stats) if command.stats not in (None, "-") else None
    profile, missing_names, waits, code = _record(command, output, stats_output)
    if not command.quiet:
        first, *more = summary_lines(
            profile.stats, command.options.mode, missing_names=missing_names, verbose=command.verbose
        )
        say(first, *more, *waits)
    say_written(command.output, output, quiet=command.quiet)
    if not profile.stats.failure:
        return code
    say(*profile.stats.failure)
    return 1


def _record(
    command: RecordCommand, output: Output, stats_output: Output | None
) -> tuple[Profile, list[str], list[str], int]:
    """Record and write; return profile, texts on missing names, lines on waits, the program's exit code."""
    if stats_output is not None and output.file and stats_output.file == output.file:
        raise UsageError(f"-o and --stats are the same file: {command.stats}")
    options = command.options
    symbols = symbol_options(command.names, quiet=command.quiet, python=options.python)
    with Interrupt() as interrupt, targets(command) as pids:
        progress_printer(quiet=command.quiet)(f"recording {', '.join(map(str, pids))}; Ctrl-C ends it")
        profile = Profile(options.rate, timeline=FORMATS[command.output.format].timeline)
        _sample(command, pids, profile, interrupt)
        with hurry(TURN_S):
            symbolizer = api.symbolizer(profile, symbols)
            report = with_names(lambda: api.named(profile, symbolizer), symbolizer.give_up, interrupt)
            waits: list[str] = []
            if options.mode == "wall":
                report, idle = (report, {}) if command.idle else fold_idle(report)
                waits = [*wait_lines(report, idle)]
            statistics = json_text(report.stats.document)
            try:  # statistics first, because `output.write` fails if the reader of the profile has ended
                if stats_output is not None:
                    stats_output.write(statistics)
                elif command.stats == "-":
                    emit(statistics)
            finally:  # the profile is written even if the statistics are not
                check_result(profile.stats, pids)
                asked, kind = as_asked(report, command.output), command.output.format
                output.write(api.render(asked, kind, threads=command.output.threads))
        code = 0 if command.program is None or interrupt() else _program_exit_code(pids[0])
    missing = [str(each) for each in symbolizer.missing_names() if command.verbose or each.can_be_mended]
    return profile, [*missing, *symbolizer.problems], waits, code


def _program_exit_code(pid: int) -> int:
    """Return the exit code of a child, as a shell gives it (128 + the signal); 0 if the child still runs."""
    end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is None:
        return 0
    return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status


def _sample(command: RecordCommand, pids: list[int], profile: Profile, stop: Interrupt) -> None:
    """Record into the profile; between ticks, show progress."""
    started_s, until = time.monotonic(), "" if command.duration is None else f" of {command.duration:g}"
    with Progress(quiet=command.quiet or command.program is not None) as progress:  # a program may draw, too

        def should_stop() -> bool:
            progress.show(f"{time.monotonic() - started_s:.0f}{until} s, {counted(profile.stats.samples)}")
            return stop()

        target = command.target
        open_many()  # after the start of `-- COMMAND`, which must not inherit the higher limit of open files
        api.record(
            pids, command.duration, command.options, should_stop=should_stop, profile=profile,
            tell=progress_printer(quiet=command.quiet), all_of=bool(target.pid or target.name),
        )  # fmt: skip


@contextmanager
def targets(command: RecordCommand) -> Iterator[list[int]]:
    """Yield the pids to record; start the command's program, and end it afterwards.  Raises SfsampleError."""
    if command.program is None:
        yield chosen_pids(command.target, quiet=command.quiet)
        return
    child = _start(command.program, has_stdout=command.output.path != "-")
    try:
        yield [child.pid]
    except NoSuchProcess:
        code = _program_exit_code(child.pid)
        too_brief = () if code else ("the program ended too soon; run a brief program many times",)
        raise NoSuchProcess(child.pid, f"ended before the first sample: {command.program[0]}",
                            f"its exit code is {code}", *too_brief) from None  # fmt: skip
    finally:
        _terminate(child, quiet=command.quiet)


def _start(program: Sequence[str], *, has_stdout: bool) -> subprocess.Popen[bytes]:
    # stdout carries only the result: if the result goes to stdout, the output of the program goes to stderr
    try:
        return subprocess.Popen(program, stdout=None if has_stdout else sys.stderr)
    except OSError as failure:
        remedies = {EACCES: "the program must be an executable file (chmod +x)"}
        remedy = remedies.get(failure.errno or 0, "give a program on PATH, or a path")
        raise SfsampleError(f"cannot start: {program[0] or repr('')}: {failure.strerror}", remedy) from None


def _terminate(child: subprocess.Popen[bytes], *, quiet: bool) -> None:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(_TERMINATE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            say(f"{child.pid} still runs: it ignores SIGTERM")
            return
        if not quiet:
            say(f"terminated {child.pid}, which this command started")
