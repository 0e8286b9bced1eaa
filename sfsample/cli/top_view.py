"""What `top` shows, as lines of text: no terminal, no clock, no process.

Law: `Top` holds what the user has chosen; `screen` turns it and a window of samples into exactly as many
lines as the terminal has, none wider than it.  Every text from the target is made printable.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from sfsample.cli.terminal import printable
from sfsample.model import StopReason
from sfsample.profile import Location, Profile
from sfsample.report.window import Record
from sfsample.stats import Stats

PLAIN, TITLE, CHOSEN, FAINT, LOST = "plain", "title", "chosen", "faint", "lost"
KEYS = "q quit  t threads  s sort  p pause  / search  c callers  w write html  ? help"
_STEPS = {"up": -1, "down": 1, "page up": -10, "page down": 10}
_HELP = (
    "up, down, page up, page down   choose a function (or a thread)",
    "c, Enter                       who calls the chosen function; of a thread or process: its functions",
    "t                              functions, threads, processes",
    "s                              sort by own time, or by time with what is called",
    "p, space                       hold the picture; sampling goes on",
    "/                              show only names that hold a word; Enter ends it, Escape clears it",
    "w                              write the window as a flame graph (html)",
    "+, -                           a longer or shorter window",
    "Escape                         back: from callers, a thread, a search",
    "q, Ctrl-C                      leave",
)

Names = Callable[[Location], Sequence[tuple[str, str]]]  # (text, module), the most inlined first


FUNCTIONS, THREADS, PROCESSES = _VIEWS = ("functions", "threads", "processes")


class Who(NamedTuple):
    """A thread; a process when `tid` is None."""

    pid: int
    tid: int | None = None

    def covers(self, pid: int, tid: int) -> bool:
        """Whether a thread is this one, or one of this process."""
        return self.pid == pid and self.tid in (None, tid)


class Line(NamedTuple):
    """One line and how it is drawn."""

    text: str
    style: str = PLAIN


class Row(NamedTuple):
    """A line of the table."""

    name: str
    module: str
    own: int
    total: int
    who: "Who | None" = None  # of a thread's or a process's line


class Top:
    """What the user has chosen."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.view = FUNCTIONS
        self.only: Who | None = None  # its functions, and no other's
        self.callers_of: str | None = None
        self.by_total = False
        self.held = False
        self.word = ""
        self.typing = False
        self.help = False
        self.chosen = 0
        self.message = ""
        self.rows: list[Row] = []
        self.total = self.truncated = 0

    # -- keys

    def key(self, key: str) -> None:
        """Do what a key asks for; `key` is a letter or the name of a key."""
        self.message = ""
        if self.typing:
            self._type(key)
            return
        act = {
            "t": self._switch, "s": self._sort, "p": self._hold, " ": self._hold, "/": self._begin_word,
            "c": self._enter, "enter": self._enter, "escape": self._back, "?": self._show_help,
        }.get(key)  # fmt: skip
        if act:
            act()
        elif key in _STEPS:
            self.chosen = max(0, min(self.chosen + _STEPS[key], len(self.rows) - 1))

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
        self.view = _VIEWS[(_VIEWS.index(self.view) + 1) % len(_VIEWS)]
        self.callers_of, self.chosen = None, 0

    def _sort(self) -> None:
        self.by_total = not self.by_total

    def _hold(self) -> None:
        self.held = not self.held

    def _begin_word(self) -> None:
        self.typing, self.word = True, ""

    def _show_help(self) -> None:
        self.help = not self.help

    def _enter(self) -> None:
        if self.chosen >= len(self.rows):
            return
        row = self.rows[self.chosen]
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

    # -- the table

    def update(self, records: Sequence[Record], names: Names, people: Profile) -> None:
        """Count the records of a window into rows; `people` knows the names of threads and processes."""
        if self.held:
            return
        counted = [one for one in records if self.only is None or self.only.covers(one.key.pid, one.key.tid)]
        self.total = sum(one.times for one in counted)
        self.truncated = sum(one.times for one in counted if one.key.stop_reason is not StopReason.OUTERMOST)
        rows = self._functions(counted, names) if self.view == FUNCTIONS else self._people(counted, people)
        word = self.word.lower()
        rows = [row for row in rows if word in row.name.lower() or word in row.module.lower()]
        self.rows = sorted(rows, key=self._rank)
        self.chosen = max(0, min(self.chosen, len(self.rows) - 1))

    def _functions(self, records: Iterable[Record], names: Names) -> list[Row]:
        own: Counter[tuple[str, str]] = Counter()
        total: Counter[tuple[str, str]] = Counter()
        for record in records:
            frames = [name for place in record.key.locations for name in names(place)]
            self._count(frames, record.times, own, total)
        return [Row(*name, own[name], total[name]) for name in total]

    def _people(self, records: Iterable[Record], people: Profile) -> list[Row]:
        counts: Counter[Who] = Counter()
        for record in records:
            pid, tid, *_ = record.key
            counts[Who(pid, tid if self.view == THREADS else None)] += record.times
        rows = []
        for who, count in counts.items():
            name = (
                people.processes.get(who.pid) if who.tid is None else people.threads.get((who.pid, who.tid))
            )
            rows.append(Row(name or "?", str(who.tid or who.pid), count, count, who))
        return rows

    def _rank(self, row: Row) -> tuple[int, int, str]:
        first = row.total if self.by_total else row.own
        return -first, -row.own - row.total, row.name

    def _count(
        self,
        frames: list[tuple[str, str]],
        times: int,
        own: Counter[tuple[str, str]],
        total: Counter[tuple[str, str]],
    ) -> None:
        if self.callers_of is not None:
            at = max((at for at, (name, _) in enumerate(frames) if name == self.callers_of), default=None)
            if at is None:
                return
            frames = frames[at + 1 :]
        if frames:
            own[frames[0]] += times
        for name in set(frames):
            total[name] += times

    # -- the picture

    def screen(self, width: int, height: int, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        """Return the lines of a terminal of that size."""
        lines = [*self._head(stats, overhead, window_s), *self._body(width, height - 5), self._foot()]
        lines = [Line(_fit(line.text, width), line.style) for line in lines]
        return lines[: max(0, height)]

    def _head(self, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        p = stats.pauses
        pause = f"pause p50 {_time(p.percentile(50))} p99 {_time(p.percentile(99))} max {_time(p.max)}"
        missed = f"missed {stats.late_ticks} of {stats.ticks} ticks"
        held = "  HELD" if self.held else ""
        return [
            Line(f"sfsample top  {self.title}  {self.total} samples in {window_s:g} s{held}", TITLE),
            Line(f"{pause}  sampler {100 * overhead:.1f} % of a CPU"),
            Line(
                f"truncated {_percent(self.truncated, self.total)}  {missed}",
                LOST if self.truncated or stats.late_ticks else FAINT,
            ),
            Line(self._columns(), TITLE),
        ]

    def _columns(self) -> str:
        if self.view != FUNCTIONS:
            number, name = ("TID", "THREAD") if self.view == THREADS else ("PID", "PROCESS")
            return f"  SHARE          {number}  {name}"
        what = "FUNCTION" if self.callers_of is None else f"CALLERS OF {printable(self.callers_of)}"
        first = "OWN " if self.callers_of is None else "CALL"
        marks = (" ", "*") if self.by_total else ("*", " ")
        thread = "" if self.only is None else f"  ({self._only(self.only)})"
        return f"  {first}{marks[0]}   TOTAL{marks[1]}   {what}{thread}"

    @staticmethod
    def _only(who: Who) -> str:
        return f"process {who.pid}" if who.tid is None else f"thread {who.tid}"

    def _body(self, width: int, height: int) -> list[Line]:
        if self.help:
            return _pad([Line(text) for text in _HELP], height)
        if not self.rows:
            return _pad([Line("no samples: no thread runs (--mode wall shows sleeping ones)", FAINT)], height)
        first = max(0, min(self.chosen - height // 2, len(self.rows) - height))
        shown = self.rows[first : first + max(0, height)]
        return _pad([self._row(row, width, at == self.chosen) for at, row in enumerate(shown, first)], height)

    def _row(self, row: Row, width: int, chosen: bool) -> Line:
        own, total = _percent(row.own, self.total), _percent(row.total, self.total)
        style = CHOSEN if chosen else PLAIN
        if row.who is not None:
            return Line(f"{own:>7} {row.module:>12}  {printable(row.name)}", style)
        text = f"{own:>7} {total:>8}   {printable(row.name)}"
        module = printable(row.module)
        room = width - len(text) - len(module) - 2
        return Line(text + " " * room + f"  {module}" if room > 0 else text, style)

    def _foot(self) -> Line:
        if self.typing:
            return Line(f"/{self.word}_", TITLE)
        word = f"[only names with {printable(self.word)!r}; Escape clears it]  " if self.word else ""
        return Line(self.message or word + KEYS, FAINT)


def _pad(lines: list[Line], height: int) -> list[Line]:
    return lines[: max(0, height)] + [Line("")] * max(0, height - len(lines))


def _fit(text: str, width: int) -> str:
    """Cut to the width; a wide letter takes two columns."""
    if text.isascii():
        return text[:width]
    from unicodedata import combining, east_asian_width

    used, kept = 0, []
    for letter in text:
        used += 0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1
        if used > width:
            break
        kept.append(letter)
    return "".join(kept)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _time(ns: int) -> str:
    return f"{ns / 1000:.0f} µs" if ns < 10_000_000 else f"{ns / 1e6:.0f} ms"
