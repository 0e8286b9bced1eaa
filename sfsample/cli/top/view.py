"""What `top` shows, as lines of text: no terminal, no clock, no process.

Law: `screen` turns choices and a table into exactly as many lines as the terminal has, none wider than it.
Every text from the target is made printable.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sfsample.cli.terminal import printable
from sfsample.cli.top import table as top_table
from sfsample.cli.top.choices import HELP, KEYS, Choices
from sfsample.cli.top.table import FUNCTIONS, THREADS, Names, Row, Table, Who
from sfsample.modules.location import pid_of
from sfsample.recording.live_window import Record
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats

PLAIN, TITLE, CHOSEN, FAINT, LOST = "plain", "title", "chosen", "faint", "lost"


class Line(NamedTuple):
    """One line and how it is drawn."""

    text: str
    style: str = PLAIN


class Top:
    """The picture: what the user has chosen, and the table that was counted last."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.choices = Choices()
        self.table = Table()
        self.span_ns = 0  # what the table is a share of
        self.message = ""

    def key(self, key: str) -> None:
        """Do what a key asks for; `key` is a letter or the name of a key."""
        self.message = ""
        self.choices.key(key, self.table.rows)

    def update(self, records: Sequence[Record], names: Names, known: Profile, span_ns: int) -> None:
        """Count the records of a window of that length; `known` knows the names of threads and processes."""
        choices = self.choices
        if choices.held:
            return
        counted = top_table.chosen_samples(records, choices.only)
        rows = (
            top_table.functions(counted, names, choices.callers_of)
            if choices.view == FUNCTIONS
            else top_table.people(counted, known, threads=choices.view == THREADS)
        )
        self.table = top_table.as_table(counted, rows, choices.word, by_second=choices.by_second)
        self.span_ns = span_ns
        choices.fit(self.table.rows)

    def screen(self, width: int, height: int, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        """Return the lines of a terminal of that size."""
        lines = [*self._head(stats, overhead, window_s), *self._body(width, height - 5), self._foot()]
        lines = [Line(_fit(printable(line.text), width), line.style) for line in lines]
        return lines[: max(0, height)]

    def _head(self, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        p, table = stats.pauses, self.table
        pause = (
            "pause none"
            if stats.timers_go_on
            else f"pause p50 {_time(p.percentile(50))} p99 {_time(p.percentile(99))} max {_time(p.max)}"
        )
        missed = f"missed {stats.late_ticks} of {stats.ticks} ticks"
        held = "  HELD" if self.choices.held else ""
        return [
            Line(f"sfsample top  {self.title}  {table.total} samples in {window_s:g} s{held}", TITLE),
            Line(f"{pause}  sampler {100 * overhead:.1f} % of a CPU"),
            Line(
                f"truncated {_percent(table.truncated, table.total)}  {missed}",
                LOST if table.truncated or stats.late_ticks else FAINT,
            ),
            Line(self._columns(), TITLE),
        ]

    def _columns(self) -> str:
        choices = self.choices
        marks = (" ", "*") if choices.by_second else ("*", " ")
        if choices.view != FUNCTIONS:
            number, name = ("TID", "THREAD") if choices.view == THREADS else ("PID", "PROCESS")
            return f" SHARE{marks[0]}     CPU{marks[1]}         {number}  {name}"
        what = "FUNCTION" if choices.callers_of is None else f"CALLERS OF {choices.callers_of}"
        first = "OWN " if choices.callers_of is None else "CALL"
        only = "" if choices.only is None else f"  ({_only(choices.only)})"
        return f"  {first}{marks[0]}   TOTAL{marks[1]}   {what}{only}"

    def _body(self, width: int, height: int) -> list[Line]:
        rows, chosen = self.table.rows, self.choices.chosen
        if self.choices.help:
            return _pad([Line(text) for text in HELP], height)
        if not rows:
            return _pad([Line("no samples: no thread runs (--mode wall shows sleeping ones)", FAINT)], height)
        first = max(0, min(chosen - height // 2, len(rows) - height))
        shown = rows[first : first + max(0, height)]
        return _pad([self._row(row, width, at == chosen) for at, row in enumerate(shown, first)], height)

    def _row(self, row: Row, width: int, chosen: bool) -> Line:
        style = CHOSEN if chosen else PLAIN
        second = _percent(row.second, self.table.total if row.who is None else self.span_ns)
        text = f"{_percent(row.first, self.table.total):>7} {second:>8}   "
        if row.who is not None:
            return Line(f"{text}{row.where:>9}  {row.name}", style)
        room = width - len(text) - len(row.name) - len(row.where) - 2
        return Line(f"{text}{row.name}{' ' * room}  {row.where}" if room > 0 else text + row.name, style)

    def _foot(self) -> Line:
        word = self.choices.word
        if self.choices.typing:
            return Line(f"/{word}_", TITLE)
        hint = f"[only names with {word!r}; Escape clears it]  " if word else ""
        return Line(self.message or hint + KEYS, FAINT)


def _only(who: Who) -> str:
    return f"process {pid_of(who.pid)}" if who.tid is None else f"thread {who.tid}"


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
