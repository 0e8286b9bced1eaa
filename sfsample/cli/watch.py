"""`sfsample watch`: prints the messages of the daemon (`sfsample.watching`), and passes signals on."""

import os
import signal

from sfsample.cli.config import execute_anew
from sfsample.cli.environment import history_directory, symbol_options
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.terminal import progress_printer, say, say_at
from sfsample.cli.watch_options import WatchCommand
from sfsample.core.quantities import spelled_seconds
from sfsample.process.stuck import hand_over, take_over
from sfsample.watching.loop import Watch
from sfsample.watching.program import Program

_SET_ASIDE = "SFSAMPLE_SET_ASIDE"  # environment variable: processes set aside before the execve(2)


def run(command: WatchCommand) -> int:
    """Record slices until a stop is requested, or until the processes given by -p have ended."""
    if command.check:
        if command.options.push.backends:
            from sfsample.watching.push.backend import check_credentials

            check_credentials(command.options.push)
        say(f"{command.config or 'flags'}: no mistake found")  # `parse` raises UsageError for a mistake
        return 0
    aside = os.environ.pop(_SET_ASIDE, "")
    take_over(aside)
    with Interrupt() as interrupt:
        while why := _watch(command, interrupt, is_anew=bool(aside)):
            os.environ[_SET_ASIDE] = hand_over()
            execute_anew(why)
    return 0


def _watch(command: WatchCommand, interrupt: Interrupt, *, is_anew: bool) -> str:
    """Record slices; return the reason to execute sfsample anew, or ''."""
    watch = make_watch(command, interrupt, is_anew=is_anew)
    signal.signal(signal.SIGUSR1, lambda *_: watch.triggers.fire())
    if command.config is not None:
        signal.signal(signal.SIGHUP, lambda *_: watch.reload())
    listen, every = command.options.listen, spelled_seconds(command.options.every)
    tell = progress_printer(quiet=command.options.quiet, tell=say_at)
    tell(f"a slice every {every}; Ctrl-C ends the watch")
    if listen.address is None:
        watch.run()
        return watch.why_anew
    from sfsample.watching.pull.server import listening  # http.server takes long to import

    with listening(listen.address, listen, watch.door) as where:
        if not command.options.quiet:
            say_at(f"listening on {where}")
        watch.run()
    return watch.why_anew


def make_watch(command: WatchCommand, interrupt: Interrupt, *, is_anew: bool = False) -> Watch:
    """Return the `Watch` for the command."""
    options, history = command.options, None
    if not command.no_history and (
        command.history or options.push.backends or options.files.output_dir is None
    ):
        history = history_directory(command.history)
    symbols = symbol_options(command.names, quiet=options.quiet, python=options.record.python)
    tell = progress_printer(quiet=options.quiet, tell=say_at)
    return Watch(options, Program(say_at, tell, interrupt, symbols, history), is_anew=is_anew)
