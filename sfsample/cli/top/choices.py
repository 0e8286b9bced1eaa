"""What the user of `top` has chosen, and what each key changes.

A key changes choices and nothing else; what is shown follows from them.
"""

from collections.abc import Sequence

from sfsample.cli.top.table import Row, TaskKey

FUNCTIONS, THREADS, PROCESSES = VIEWS = ("functions", "threads", "processes")
KEYS = "q quit  t threads  s sort  p pause  / search  c callers  w write html  ? help"
HELP = (
    "up, down, page up/down  select a function (or a thread, a process)",
    "c, Enter                its callers; of a thread or process: its functions",
    "t                       functions, threads, processes",
    "s                       sort by the first or the second column of numbers",
    "p, space                freeze the screen; sampling goes on",
    "/                       show names with a word; Enter ends it, Escape clears it",
    "w                       write the window as a flame graph (html)",
    "+, -                    a longer or shorter window",
    "Escape                  back: from callers, a thread, a search",
    "q, Ctrl-C               quit",
)
_STEPS = {"up": -1, "down": 1, "page up": -10, "page down": 10}  # rows


class Choices:
    """What is shown: which view, of which thread or process, in which order; `selected` is the marked row."""

    def __init__(self) -> None:
        self.view = FUNCTIONS
        self.task: TaskKey | None = None  # show the functions of this thread or process only
        self.callers_of: str | None = None
        self.sort_by_second = False
        self.paused = False
        self.word = ""
        self.typing = False
        self.help = False
        self.selected = 0

    def key(self, key: str, rows: Sequence[Row]) -> None:
        """Do what a key asks for; `key` is a letter or the name of a key, `rows` is what the user sees."""
        if self.typing:
            self._type(key)
            return
        match key:
            case "t":
                self.view = VIEWS[(VIEWS.index(self.view) + 1) % len(VIEWS)]
                self.callers_of, self.selected = None, 0
            case "s":
                self.sort_by_second = not self.sort_by_second
            case "p" | " ":
                self.paused = not self.paused
            case "?":
                self.help = not self.help
            case "/":
                self.typing, self.word = True, ""
            case "escape":
                self._back()
            case "c" | "enter" if self.selected < len(rows):
                self._enter(rows[self.selected])
        self.selected += _STEPS.get(key, 0)
        self.fit(rows)

    def fit(self, rows: Sequence[Row]) -> None:
        """Select a row that exists."""
        self.selected = max(0, min(self.selected, len(rows) - 1))

    def _type(self, key: str) -> None:
        if key == "enter":
            self.typing = False
        elif key == "escape":
            self.typing, self.word = False, ""
        elif key == "backspace":
            self.word = self.word[:-1]
        elif len(key) == 1 and key.isprintable():
            self.word += key
        self.selected = 0

    def _enter(self, row: Row) -> None:
        if row.task is not None:
            self.task, self.view = row.task, FUNCTIONS
        else:
            self.callers_of = row.name
        self.selected, self.word = 0, ""

    def _back(self) -> None:
        if self.help:
            self.help = False
        elif self.word:
            self.word = ""
        elif self.callers_of is not None:
            self.callers_of = None
        else:
            self.task, self.view = None, FUNCTIONS
        self.selected = 0
