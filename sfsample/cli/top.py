"""`sfsample top`: a live view in the terminal.

Law: the sampler runs on a thread of its own and never waits for the terminal.  What we compute, we compute
between two pauses (PAUSE), because whoever holds the interpreter holds the target.  Whatever ends it (a key,
a signal, the target's end, a bug), the terminal is as before.
"""

import os
import signal
import sys
import threading
import time
from argparse import Namespace
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from sfsample import api
from sfsample.cli.console import Interrupt, Output, steppers, targets
from sfsample.cli.naming import naming
from sfsample.cli.record import check_begun, rate
from sfsample.cli.top_view import CHOSEN, FAINT, LOST, PLAIN, TITLE, Line, Top
from sfsample.errors import SfsampleError, UsageError
from sfsample.profile import Location
from sfsample.report.window import Window, as_profile
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.target.gate import PAUSE

if TYPE_CHECKING:
    import curses
    from collections.abc import Iterator

_DRAW_S = 0.5
_KEY_S = 0.1
_WINDOWS_S = (1, 2, 5, 10, 30, 60)


def run(arguments: Namespace) -> int:
    """Show until the user leaves or the target ends; return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "for a file: sfsample record -d 10 -o out.html")
    suspension = _Suspension()
    with suspension, Interrupt() as interrupt:
        pids = targets(arguments)
        session = _Session(arguments, pids, interrupt, suspension)
        session.start()
        try:
            with _terminal() as screen:
                session.show(screen)
        finally:
            session.stop()
    return session.judge()


@contextmanager
def _terminal() -> "Iterator[curses.window]":
    """Take over the terminal, and give it back."""
    try:
        import curses
    except ImportError:
        raise SfsampleError("this Python has no curses", "for a file: sfsample record -o out.html") from None
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)  # curses would believe them for ever, whatever size the terminal takes
    try:
        screen = curses.initscr()
    except curses.error as failure:
        raise SfsampleError(f"cannot draw on this terminal: {failure}", "set TERM, e.g. TERM=xterm") from None
    try:
        curses.noecho()
        curses.raw()  # Ctrl-C and Ctrl-Z are keys, so that neither can leave the terminal as it is now
        screen.keypad(True)
        screen.timeout(round(_KEY_S * 1000))
        _prepare(curses.curs_set, 0)
        _prepare(curses.start_color)
        _prepare(curses.use_default_colors)
        yield screen
    finally:
        screen.keypad(False)
        curses.noraw()
        curses.echo()
        curses.endwin()


def _prepare(call: object, *words: int) -> None:
    """Ask for something that not every terminal has."""
    import curses
    from contextlib import suppress

    with suppress(curses.error):
        call(*words)  # type: ignore[operator]


class _Session:
    """One run: the sampling thread, and the picture."""

    def __init__(
        self, arguments: Namespace, pids: list[int], interrupt: Interrupt, suspension: "_Suspension"
    ) -> None:
        self._arguments = arguments
        self._pids = pids
        self._interrupt = interrupt
        self._suspension = suspension
        self._rate = rate(arguments)
        self._window = Window(self._rate, arguments.window)
        self._top = Top(", ".join(map(str, pids)))
        self._naming = naming(arguments)
        self._names: dict[Location, list[tuple[str, str]]] = {}
        self._left = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._thread.start()

    def stop(self) -> None:
        """End the sampling; the target is let go before this returns."""
        self._left = True
        self._thread.join()

    def _sample(self) -> None:
        arguments = self._arguments
        try:
            api.record(
                self._pids,
                rate=self._rate,
                mode=arguments.mode,
                max_frames=arguments.max_frames,
                kernel=arguments.kernel,
                stack_bytes=arguments.stack_bytes,
                steppers=steppers(arguments),
                should_stop=lambda: self._left or self._interrupt.requested,
                profile=self._window,
            )
        except BaseException as failure:  # noqa: BLE001 - raised again on the main thread, by `judge`
            self._failure = failure

    def judge(self) -> int:
        """Raise what ended the sampling, if it was no success; say why it is over."""
        if self._failure is not None:
            raise self._failure
        check_begun(self._window.stats, self._pids)
        return 0

    # -- the picture

    def show(self, screen: "curses.window") -> None:
        """Draw and obey keys until it is over."""
        due = 0.0
        while self._thread.is_alive() and not self._interrupt.requested:
            if self._suspension.requested:
                self._suspension.obey(screen)
            if time.monotonic() >= due:
                self._draw(screen)
                due = time.monotonic() + _DRAW_S
            key = _read_key(screen)
            if key in ("q", "interrupt"):
                return
            if key:
                self._obey(key)
                due = 0.0

    def _obey(self, key: str) -> None:
        top = self._top
        if key == "suspend":
            self._suspension.requested = True
        elif key == "w" and not top.typing:
            self._write()
        elif key in ("+", "-") and not top.typing:
            self._resize_window(1 if key == "+" else -1)
        else:
            top.key(key)

    def _now_ns(self) -> int:
        return round((time.monotonic() - self._began) * 1e9)

    def _draw(self, screen: "curses.window") -> None:
        window, top = self._window, self._top
        top.title = ", ".join(f"{window.processes.get(pid, '?')} {pid}" for pid in self._pids)
        with PAUSE:
            top.update(window.last(self._now_ns()), self._name, window)
        elapsed = time.monotonic() - self._began
        overhead = (time.process_time() - self._cpu) / max(elapsed, 1e-3)
        height, width = screen.getmaxyx()
        _paint(screen, top.screen(width, height, window.stats, overhead, window.length_ns / 1e9))

    @cached_property
    def _symbolizer(self) -> Symbolizer:
        """Made when the first place is named: then it is known where the processes live."""
        return api.symbolizer(self._window, self._naming)

    def _name(self, place: Location) -> list[tuple[str, str]]:
        found = self._names.get(place)
        if found is None:
            module = place.module.path.rpartition("/")[2] if place.module else ""
            found = self._names[place] = [(named.text, module) for named in self._symbolizer.frames(place)]
        return found

    def _resize_window(self, step: int) -> None:
        seconds = round(self._window.length_ns / 1e9)
        later = [one for one in _WINDOWS_S if (one > seconds if step > 0 else one < seconds)]
        if later:
            self._window.length_ns = (later[0] if step > 0 else later[-1]) * 10**9

    def _write(self) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = f"sfsample-{'-'.join(map(str, self._pids[:3]))}-{stamp}.html"
        try:
            output = Output(path)
            with PAUSE:
                profile = as_profile(self._window, self._window.last(self._now_ns()))
                data = api.render(api.named(profile, self._symbolizer), "html")
            output.write(data)
            self._top.message = f"written: {path}"
        except SfsampleError as failure:
            self._top.message = str(failure)


class _Suspension:
    """Ctrl-Z and SIGTSTP: give the terminal back, stop between two pauses, and take it again."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTSTP, self._note)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, self._before)

    def _note(self, _number: int, _frame: object) -> None:
        self.requested = True

    def obey(self, screen: "curses.window") -> None:
        """Stop, and go on when told to."""
        import curses

        self.requested = False
        curses.endwin()
        with PAUSE:
            os.kill(os.getpid(), signal.SIGSTOP)
        screen.refresh()


def _read_key(screen: "curses.window") -> str:
    """Return a letter, the name of a key, or nothing when none came."""
    import curses

    try:
        key = screen.get_wch()
    except curses.error:
        return ""
    names: dict[object, str] = {
        "\n": "enter", "\r": "enter", curses.KEY_ENTER: "enter", "\x1b": "escape", "\x7f": "backspace",
        "\b": "backspace", curses.KEY_BACKSPACE: "backspace", curses.KEY_UP: "up", curses.KEY_DOWN: "down",
        curses.KEY_PPAGE: "page up", curses.KEY_NPAGE: "page down", curses.KEY_RESIZE: "resize",
        "\x03": "interrupt", "\x1a": "suspend",
    }  # fmt: skip
    return names.get(key, key if isinstance(key, str) else "")


def _paint(screen: "curses.window", lines: list[Line]) -> None:
    """Draw; a terminal that has just become smaller refuses, and is drawn anew in a moment."""
    import curses
    from contextlib import suppress

    styles = {PLAIN: curses.A_NORMAL, TITLE: curses.A_BOLD, CHOSEN: curses.A_REVERSE, FAINT: curses.A_DIM,
              LOST: curses.A_BOLD}  # fmt: skip
    screen.erase()
    for row, line in enumerate(lines):
        with suppress(curses.error):  # also: the last column of the last line
            screen.addstr(row, 0, line.text, styles[line.style])
    screen.refresh()
