"""Runs `sfsample top`: one thread samples, the main thread draws and reads keys.

The sampling thread never waits for the terminal.  While the main thread computes, it holds the interpreter,
so the sampling thread cannot release a target thread.  So the main thread computes only while sfsample holds
no thread of the target (`SUSPEND_LOCK`).
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, cached_property

from sfsample import api
from sfsample.cli.chosen import chosen_pids
from sfsample.cli.environment import symbol_options
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.output_file import Output
from sfsample.cli.record_options import TopCommand
from sfsample.cli.terminal import say
from sfsample.cli.top.screen import Screen, terminal
from sfsample.cli.top.table import FunctionName
from sfsample.cli.top.view import TopView
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.core.foreign import utc
from sfsample.errors import NoThread, SfsampleError, UsageError
from sfsample.modules.location import Location
from sfsample.process.thread_files import open_many
from sfsample.recording.profile import LiveWindow
from sfsample.recording.stats import check_begun
from sfsample.symbolize.symbolizer import Symbolizer

_DRAW_PERIOD_S = 0.5


def run(command: TopCommand) -> int:
    """Show the live view until the user leaves or the target ends; return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "for a file: sfsample PID -d 10 -o out.html")
    with Interrupt() as interrupt:
        session = _Session(command, chosen_pids(command.target), interrupt)
        with session.sampling(), terminal() as screen:
            session.show(screen)
    return session.report_end()


class _Session:
    def __init__(self, command: TopCommand, pids: list[int], interrupt: Interrupt) -> None:
        self._command, self._pids, self._interrupt = command, pids, interrupt
        self._window = LiveWindow(command.options.rate, command.window)
        self._view = TopView(", ".join(map(str, pids)))
        self._symbol_options = symbol_options(
            command.names, command.options.debug_dirs, quiet=True, python=command.options.python
        )
        self._find_names = cache(self._names_at)
        self._stopping = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._sample, daemon=True)

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample while the context lasts.  Raises the failure that ended the sampling."""
        self._started_s, self._cpu_at_start_s = time.monotonic(), time.process_time()
        try:
            self._thread.start()
        except RuntimeError:
            raise NoThread from None
        try:
            yield
        finally:
            self._stopping = True
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        check_begun(self._window.profile.stats, self._pids)

    def _sample(self) -> None:
        try:
            target = self._command.target
            open_many()
            api.record(
                self._pids, options=self._command.options, profile=self._window.profile,
                should_stop=lambda: self._stopping or self._interrupt.requested,
                all_of=bool(target.pid or target.name),
            )  # fmt: skip
        except BaseException as failure:  # noqa: BLE001 - `sampling` raises it again, on the main thread
            self._failure = failure

    def show(self, screen: Screen) -> None:
        """Draw and obey keys until the user leaves or the sampling ends."""
        draw_at_s = 0.0
        while self._thread.is_alive() and not self._interrupt.requested:
            if time.monotonic() >= draw_at_s:
                self._draw(screen)
                draw_at_s = time.monotonic() + _DRAW_PERIOD_S
            key = screen.key()
            if key in ("q", "interrupt"):
                return
            if key:
                self._obey(key, screen)
                draw_at_s = 0.0

    def report_end(self) -> int:
        """Say why the view has ended, unless the user left; return the exit code."""
        stats = self._window.profile.stats
        if stats.failure:
            say(*stats.failure)
            return 1
        if stats.ended_by == "target":
            say(f"top has ended with its target: {self._view.title}")
        return 0

    def _obey(self, key: str, screen: Screen) -> None:
        view = self._view
        if key == "suspend":
            screen.suspend()
        elif key == "w" and not view.typing:
            self._write()
        else:
            view.key(key)

    def _elapsed_ns(self) -> int:
        return round((time.monotonic() - self._started_s) * 1e9)

    def _draw(self, screen: Screen) -> None:
        window, view, profile = self._window, self._view, self._window.profile
        view.title = ", ".join(f"{profile.processes.get(pid, '?')} {pid}" for pid in self._pids)
        now_ns = self._elapsed_ns()
        with SUSPEND_LOCK:
            view.update(window.last(now_ns), self._find_names, profile, min(now_ns, window.length_ns))
        overhead = (time.process_time() - self._cpu_at_start_s) * 1e9 / max(now_ns, 1)
        screen.draw(view.screen(*screen.size, profile.stats, overhead, window.length_ns / 1e9))

    @cached_property
    def _symbolizer(self) -> Symbolizer:
        """The symbolizer; made late, when the root directories of the processes are known."""
        return api.symbolizer(self._window.profile, self._symbol_options)

    def _names_at(self, location: Location) -> list[FunctionName]:
        module = location.module.path.rpartition("/")[2] if location.module else ""
        return [(frame.text, module) for frame in self._symbolizer.frames(location)]

    def _write(self) -> None:
        stamp = utc(time.time(), "%Y%m%dT%H%M%SZ")
        path = f"sfsample-{'-'.join(map(str, self._pids[:3]))}-{stamp}.html"
        try:
            output = Output(path)
            with SUSPEND_LOCK:
                profile = self._window.as_profile(self._window.last(self._elapsed_ns()))
                data = api.render(api.named(profile, self._symbolizer), "html")
            output.write(data)
            self._view.message = f"written: {path}"
        except SfsampleError as failure:
            self._view.message = str(failure)
