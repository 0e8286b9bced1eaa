"""Draws on the terminal of `top` and reads keys; the only module that uses curses.

Whatever ends `top` (a key, a signal, a bug), the terminal is restored.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from sfsample.cli.terminal import spelled
from sfsample.cli.top.view import FAINT, LOSS, PLAIN, SELECTED, TITLE, Line
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.errors import SfsampleError

try:
    import curses
except ImportError:  # some builds of Python have no curses
    raise SfsampleError("this Python has no curses", "for a file: sfsample record -o out.html") from None

_KEY_TIMEOUT_S = 0.1
_STYLES = {PLAIN: curses.A_NORMAL, TITLE: curses.A_BOLD, SELECTED: curses.A_REVERSE, FAINT: curses.A_DIM,
           LOSS: curses.A_BOLD}  # fmt: skip
_KEY_NAMES: dict[object, str] = {
    "\n": "enter", "\r": "enter", curses.KEY_ENTER: "enter", "\x1b": "escape", "\x7f": "backspace",
    "\b": "backspace", curses.KEY_BACKSPACE: "backspace", curses.KEY_UP: "up",
    curses.KEY_DOWN: "down", curses.KEY_PPAGE: "page up", curses.KEY_NPAGE: "page down",
    curses.KEY_RESIZE: "resize", "\x03": "interrupt", "\x1a": "suspend",
}  # fmt: skip


class Screen:
    """Draws lines, and reads keys by name."""

    def __init__(self, window: curses.window) -> None:
        self._window = window
        curses.raw()  # Ctrl-C, Ctrl-Z and Ctrl-\ become keys: as signals they could leave the terminal raw
        window.timeout(round(_KEY_TIMEOUT_S * 1000))
        with suppress(curses.error):  # some terminals cannot hide the cursor
            curses.curs_set(0)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height."""
        height, width = self._window.getmaxyx()
        return width, height

    def key(self) -> str:
        """Return a letter or the name of a key; '' if the user presses none in a tenth of a second."""
        try:
            key = self._window.get_wch()
        except curses.error:
            return ""
        return _KEY_NAMES.get(key, key if isinstance(key, str) else "")

    def draw(self, lines: list[Line]) -> None:
        """Draw lines; if the terminal has just become smaller, some lines are missing until the next call."""
        self._window.erase()
        for row, line in enumerate(lines):
            with suppress(curses.error):  # writing to the last column of the last line always fails
                self._window.addstr(row, 0, self._in_locale(line.text), _STYLES[line.style])
        self._window.refresh()

    def _in_locale(self, text: str) -> str:
        """Return a text with `?` for letters that the locale lacks; curses would drop them."""
        return spelled(text).encode(self._window.encoding, "replace").decode(self._window.encoding)

    def suspend(self) -> None:
        """Give the terminal back, suspend sfsample while it holds no thread, and take the terminal again."""
        curses.endwin()
        with SUSPEND_LOCK:
            os.kill(os.getpid(), signal.SIGSTOP)
        self._window.refresh()


def on_terminal(show: Callable[[Screen], None]) -> None:
    """Take over the terminal, call `show`, and give the terminal back."""
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)  # curses would use these instead of the real size
    try:
        curses.setupterm()
    except curses.error as failure:
        raise SfsampleError(f"cannot draw on this terminal: {failure}", "set TERM, e.g. TERM=xterm") from None
    curses.wrapper(lambda window: show(Screen(window)))
