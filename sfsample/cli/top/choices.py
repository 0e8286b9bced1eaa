"""What the user of `top` has chosen, and what each key changes.

Law: keys change choices and nothing else; what is shown follows from them.
"""

from collections.abc import Sequence

from sfsample.cli.top.table import FUNCTIONS, VIEWS, Row, Who

KEYS = "q quit  t threads  s sort  p pause  / search  c callers  w write html  ? help"
HELP = (
    "up, down, page up/down  choose a function (or a thread)",
    "c, Enter                its callers; of a thread or process: its functions",
    "t                       functions, threads, processes",
    "s                       sort by the first or the second column of numbers",
    "p, space                hold the picture; sampling goes on",
    "/                       only names with a word; Enter ends it, Escape clears it",
    "w                       write the window as a flame graph (html)",
    "+, -                    a longer or shorter window",
    "Escape                  back: from callers, a thread, a search",
    "q, Ctrl-C               leave",
)
_STEPS = {"up": -1, "down": 1, "page up": -10, "page down": 10}


class Choices:
    """What is shown, of whom, in which order; `chosen` is the marked row."""

    def __init__(self) -> None:
        self.view = FUNCTIONS
        self.only: Who | None = None  # its functions, and no other's
        self.callers_of: str | None = None
        self.by_second = False
        self.held = False
        self.word = ""
        self.typing = False
        self.help = False
        self.chosen = 0

    def key(self, key: str, rows: Sequence[Row]) -> None:
        """Do what a key asks for; `key` is a letter or the name of a key, `rows` is what the user sees."""
        if self.typing:
            self._type(key)
            return
        act = {
            "t": self._switch, "s": self._sort, "p": self._hold, " ": self._hold, "/": self._begin_word,
            "escape": self._back, "?": self._show_help,
        }.get(key)  # fmt: skip
        if act:
            act()
        elif key in ("c", "enter"):
            self._enter(rows)
        elif key in _STEPS:
            self.chosen += _STEPS[key]
            self.fit(rows)

    def fit(self, rows: Sequence[Row]) -> None:
        """Mark a row that there is."""
        self.chosen = max(0, min(self.chosen, len(rows) - 1))

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.word = False, ""
        elif key == "backspace":
            self.word = self.word[:-1]
        elif len(key) == 1 and key.isprintable():
            self.word += key
        self.chosen = 0

    def _switch(self) -> None:
        self.view = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
        self.callers_of, self.chosen = None, 0

    def _sort(self) -> None:
        self.by_second = not self.by_second

    def _hold(self) -> None:
        self.held = not self.held

    def _begin_word(self) -> None:
        self.typing, self.word = True, ""

    def _show_help(self) -> None:
        self.help = not self.help

    def _enter(self, rows: Sequence[Row]) -> None:
        if self.chosen >= len(rows):
            return
        row = rows[self.chosen]
        if row.who is not None:
            self.only, self.view = row.who, FUNCTIONS
        else:
            self.callers_of = row.name
        self.chosen, self.word = 0, ""

    def _back(self) -> None:
        if self.help:
            self.help = False
        elif self.word:
            self.word = ""
        elif self.callers_of is not None:
            self.callers_of = None
        else:
            self.only, self.view = None, FUNCTIONS
        self.chosen = 0
