"""The terminal while `top` has it: curses' one door.

Law: whatever ends it (a key, a signal, a bug), the terminal is as before.  What not every terminal has is
asked for and may be refused.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from sfsample.cli.top.view import CHOSEN, FAINT, LOST, PLAIN, TITLE, Line
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.errors import SfsampleError

if TYPE_CHECKING:
    import curses

_KEY_S = 0.1


class Screen:
    """Draws lines, and reads keys by name."""

    def __init__(self, window: "curses.window") -> None:
        self._window = window

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self._window.getmaxyx()
        return width, height

    def key(self) -> str:
        """Return a letter, the name of a key, or nothing when none came in a while."""
        import curses

        try:
            key = self._window.get_wch()
        except curses.error:
            return ""
        names: dict[object, str] = {
            "\n": "enter", "\r": "enter", curses.KEY_ENTER: "enter", "\x1b": "escape", "\x7f": "backspace",
            "\b": "backspace", curses.KEY_BACKSPACE: "backspace", curses.KEY_UP: "up",
            curses.KEY_DOWN: "down", curses.KEY_PPAGE: "page up", curses.KEY_NPAGE: "page down",
            curses.KEY_RESIZE: "resize", "\x03": "interrupt", "\x1a": "suspend",
        }  # fmt: skip
        return names.get(key, key if isinstance(key, str) else "")

    def draw(self, lines: list[Line]) -> None:
        """Show; a terminal that has just become smaller refuses, and is drawn anew in a moment."""
        import curses

        styles = {PLAIN: curses.A_NORMAL, TITLE: curses.A_BOLD, CHOSEN: curses.A_REVERSE, FAINT: curses.A_DIM,
                  LOST: curses.A_BOLD}  # fmt: skip
        self._window.erase()
        for row, line in enumerate(lines):
            with suppress(curses.error):  # also: the last column of the last line
                self._window.addstr(row, 0, line.text, styles[line.style])
        self._window.refresh()

    def suspend(self) -> None:
        """Give the terminal back, stop between two pauses, and take it again when told to go on."""
        import curses

        curses.endwin()
        with SUSPEND_LOCK:
            os.kill(os.getpid(), signal.SIGSTOP)
        self._window.refresh()


@contextmanager
def terminal() -> Iterator[Screen]:
    """Take over the terminal, and give it back."""
    try:
        import curses
    except ImportError:
        raise SfsampleError("this Python has no curses", "for a file: sfsample record -o out.html") from None
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)  # curses would believe them for ever, whatever size the terminal takes
    try:
        window = curses.initscr()
    except curses.error as failure:
        raise SfsampleError(f"cannot draw on this terminal: {failure}", "set TERM, e.g. TERM=xterm") from None
    before = signal.signal(signal.SIGQUIT, _give_back)
    try:
        _set_up(window)
        yield Screen(window)
    finally:
        signal.signal(signal.SIGQUIT, before)
        window.keypad(False)
        curses.noraw()
        curses.echo()
        curses.endwin()


def _give_back(number: int, _frame: object) -> None:
    """Do what the signal is for, without the terminal."""
    import curses

    curses.endwin()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _set_up(window: "curses.window") -> None:
    import curses

    curses.noecho()
    curses.raw()  # Ctrl-C and Ctrl-Z are keys, so that neither can leave the terminal as it is now
    window.keypad(True)
    window.timeout(round(_KEY_S * 1000))
    for prepare in (lambda: curses.curs_set(0), curses.start_color, curses.use_default_colors):
        with suppress(curses.error):
            prepare()
