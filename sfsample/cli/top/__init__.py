"""Runs `sfsample top`: one thread samples, the main thread draws and reads keys.

The sampling thread never waits for the terminal, but cannot release a thread of the target while the main
thread holds the GIL.  So the main thread computes only while sfsample holds no thread (`SUSPEND_LOCK`).

Whatever ends `top` (a key, a signal, a bug), the terminal is restored.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, cached_property, partial

from sfsample import api
from sfsample.cli.chosen import chosen_pids
from sfsample.cli.environment import symbol_options
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.record_options import TopCommand
from sfsample.cli.terminal import say, spelled
from sfsample.cli.top.view import FAINT, PLAIN, SELECTED, TITLE, FindFrames, Line, TopView
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.core.quantities import listed
from sfsample.errors import NoThread, SfsampleError, UsageError
from sfsample.process.thread_files import open_many
from sfsample.recording.profile import LiveWindow
from sfsample.recording.stats import check_begun

try:
    import curses
except ImportError:  # some builds of Python have no curses
    raise SfsampleError("this Python has no curses", "for a file: sfsample record -o out.html") from None

_DRAW_PERIOD_S = 0.5
_KEY_TIMEOUT_S = 0.1
_STYLES = {PLAIN: curses.A_NORMAL, TITLE: curses.A_BOLD, SELECTED: curses.A_REVERSE, FAINT: curses.A_DIM}
_KEY_NAMES: dict[object, str] = {
    "\n": "enter", "\r": "enter", curses.KEY_ENTER: "enter", "\x1b": "escape", "\x7f": "backspace",
    "\b": "backspace", curses.KEY_BACKSPACE: "backspace", curses.KEY_UP: "up",
    curses.KEY_DOWN: "down", curses.KEY_PPAGE: "page up", curses.KEY_NPAGE: "page down",
    curses.KEY_RESIZE: "resize", "\x03": "interrupt", "\x1a": "suspend",
}  # fmt: skip


def run(command: TopCommand) -> int:
    """Show the live view until the user leaves or the target ends; return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "for a file: sfsample PID -d 10 -o out.html")
    with Interrupt() as interrupt, ThreadPoolExecutor(1) as sampling_thread:
        session = _Session(command, chosen_pids(command.target), interrupt)
        try:
            sampling = sampling_thread.submit(session.sample)
        except RuntimeError:
            raise NoThread from None
        try:
            on_terminal(partial(session.show, sampling))
        finally:
            session.stopping = True
        sampling.result()  # raises the failure that ended the sampling
    return session.report_end()


class Screen:
    """Draws lines with curses, and reads keys by name."""

    def __init__(self, window: curses.window) -> None:
        self._window = window
        curses.raw()  # Ctrl-C, Ctrl-Z and Ctrl-\ become keys: signals could leave the terminal raw
        window.timeout(round(_KEY_TIMEOUT_S * 1000))
        with suppress(curses.error):  # some terminals cannot hide the cursor
            curses.curs_set(0)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self._window.getmaxyx()
        return width, height

    def key(self) -> str:
        """Return a letter or the name of a key; '' if the user presses no key in 0.1 s."""
        try:
            key = self._window.get_wch()
        except curses.error:
            return ""
        return _KEY_NAMES.get(key, key if isinstance(key, str) else "")

    def draw(self, lines: list[Line]) -> None:
        """Draw lines; if the terminal has just become smaller, some lines are missing until the next call."""
        self._window.erase()
        encoding = self._window.encoding  # curses would drop letters that this encoding lacks
        for row, line in enumerate(lines):
            text = spelled(line.text).encode(encoding, "replace").decode(encoding)
            with suppress(curses.error):  # writing to the last column of the last line always fails
                self._window.addstr(row, 0, text, _STYLES[line.style])
        self._window.refresh()

    def suspend(self) -> None:
        """Give the terminal back, suspend sfsample while it holds no thread, and take the terminal again."""
        curses.endwin()
        with SUSPEND_LOCK:
            os.kill(os.getpid(), signal.SIGSTOP)
        self._window.refresh()


def on_terminal(show: Callable[[Screen], None]) -> None:
    """Take over the terminal, call `show`, and give the terminal back."""
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)  # curses would use these variables instead of the real size
    try:
        curses.setupterm()
    except curses.error as failure:
        raise SfsampleError(f"cannot draw on this terminal: {failure}", "set TERM, e.g. TERM=xterm") from None
    curses.wrapper(lambda window: show(Screen(window)))


class _Session:
    def __init__(self, command: TopCommand, pids: list[int], interrupt: Interrupt) -> None:
        self._command, self._pids, self._interrupt = command, pids, interrupt
        self._window = LiveWindow(command.options.rate, command.window)
        self._view = TopView(", ".join(map(str, pids)), blame=command.options.blame)
        self._symbol_options = symbol_options(command.names, quiet=True, python=command.options.python)
        self.stopping = False
        self._started_s, self._cpu_at_start_s = time.monotonic(), time.process_time()

    def sample(self) -> None:
        """Sample until the user leaves or the target ends.  Raises SfsampleError."""
        target = self._command.target
        open_many()
        api.record(
            self._pids, options=self._command.options, profile=self._window.profile,
            should_stop=lambda: self.stopping or self._interrupt.requested,
            all_of=bool(target.pid or target.name),
        )  # fmt: skip
        check_begun(self._window.profile.stats, self._pids)

    def show(self, sampling: Future[None], screen: Screen) -> None:
        """Draw and obey keys until the user leaves or the sampling ends."""
        draw_at_s = 0.0
        while not sampling.done() and not self._interrupt.requested:
            if time.monotonic() >= draw_at_s:
                self._draw(screen)
                draw_at_s = time.monotonic() + _DRAW_PERIOD_S
            key = screen.key()
            if key in ("q", "interrupt"):
                return
            if key == "suspend":
                screen.suspend()
            elif key:
                self._view.key(key)
            if key:
                draw_at_s = 0.0

    def report_end(self) -> int:
        """Print why the view has ended, unless the user ended it; return the exit code."""
        stats = self._window.profile.stats
        if stats.failure:
            say(*stats.failure)
            return 1
        if stats.ended_by == "target":
            say(f"top has ended with its target: {self._view.title}")
        return 0

    def _draw(self, screen: Screen) -> None:
        window, view, profile = self._window, self._view, self._window.profile
        view.title = listed([f"{profile.processes.get(pid, '?')} {pid}" for pid in self._pids], 2)
        now_ns = round((time.monotonic() - self._started_s) * 1e9)
        with SUSPEND_LOCK:
            view.update(window.last(now_ns), self._find_frames, profile, min(now_ns, window.length_ns))
        overhead = (time.process_time() - self._cpu_at_start_s) * 1e9 / max(now_ns, 1)
        screen.draw(view.screen(*screen.size, profile.stats, overhead, window.length_ns / 1e9))

    @cached_property
    def _find_frames(self) -> FindFrames:
        """Names locations; made at the first use, when the root directories of the processes are known."""
        return cache(api.symbolizer(self._window.profile, self._symbol_options).frames)
