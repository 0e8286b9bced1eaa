"""Computes the lines that `top` shows, and the effect of each key.

Invariant: `screen` returns at most as many lines as the terminal has, and no line is wider than the terminal;
every text from the target is made printable (tests/cli/top/test_view.py).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sfsample.core.printable import columns, fit, printable
from sfsample.core.quantities import brief_time
from sfsample.core.stack import StopReason
from sfsample.modules.location import Location, pid_of
from sfsample.recording.profile import Profile, WindowRecord
from sfsample.recording.sample import ThreadKey
from sfsample.recording.stats import Stats

PLAIN, TITLE, SELECTED, FAINT = "plain", "title", "selected", "faint"
_NAME_WIDTH = 15  # columns: the longest name of a thread
FUNCTIONS, THREADS, PROCESSES = VIEWS = ("functions", "threads", "processes")
KEYS = "q quit  t threads, processes  s sort  p pause  / search  c callers  Esc back"
_STEPS = {"up": -1, "down": 1, "page up": -10, "page down": 10}  # rows
_FRAME_LINES = 5  # lines above and below the table


FunctionName = tuple[str, str]  # a function and its module
FindNames = Callable[[Location], Sequence[FunctionName]]  # the innermost inlined function first
TaskKey = ThreadKey | int  # a thread, or the key of a process


class Row(NamedTuple):
    """A row of the table: a function, or a task, which is a thread or a process."""

    name: str
    where: str  # module of the function, or id of the task
    first: int  # own samples of the function, or samples of the task
    second: int  # samples of the function and of its callees, or CPU time of the task in ns
    task: TaskKey | None = None  # None for a function
    wait: str = ""  # last wait of a thread; "": the thread ran


class Table(NamedTuple):
    """The rows, and the numbers of samples."""

    rows: tuple[Row, ...] = ()
    total: int = 0  # samples in the window
    truncated: int = 0  # samples whose stack does not reach the outermost frame


class Line(NamedTuple):
    """One line, and the style in which `top` draws the line."""

    text: str
    style: str = PLAIN


class TopView:
    """The choices that the user makes with keys, and the last table."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.table = Table()
        self.span_ns = 0  # time that the table covers
        self.cpu_ns = 0  # CPU time of all records in this time
        self.view = FUNCTIONS
        self.task: TaskKey | None = None  # the only thread or process whose functions are shown
        self.callers_of: str | None = None
        self.sort_by_second = False
        self.paused = False
        self.word = ""
        self.typing = False
        self.selected = 0

    def key(self, key: str) -> None:
        """Obey a key: a letter or the name of a key."""
        rows = self.table.rows
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
            case "/":
                self.typing, self.word = True, ""
            case "escape":
                self._back()
            case "c" | "enter" if self.selected < len(rows):
                self._enter(rows[self.selected])
        self.selected += _STEPS.get(key, 0)
        self._select_a_row()

    def _select_a_row(self) -> None:
        self.selected = max(0, min(self.selected, len(self.table.rows) - 1))

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
        if self.word:
            self.word = ""
        elif self.callers_of is not None:
            self.callers_of = None
        else:
            self.task, self.view = None, FUNCTIONS
        self.selected = 0

    def update(
        self, records: Sequence[WindowRecord], find_names: FindNames, profile: Profile, span_ns: int
    ) -> None:
        """Count the records of the last `span_ns`; `profile` has the names of threads and processes."""
        if self.paused:
            return
        self.cpu_ns = sum(record.cpu_ns for record in records)
        if (task := self.task) is not None:
            records = [record for record in records if task in (record.key.thread, record.key.process_key)]
        rows = (
            function_rows(records, find_names, self.callers_of)
            if self.view == FUNCTIONS
            else task_rows(records, profile, threads=self.view == THREADS)
        )
        self.table = make_table(records, rows, self.word, sort_by_second=self.sort_by_second)
        self.span_ns = span_ns
        self._select_a_row()

    def screen(self, width: int, height: int, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        """Return the lines for a terminal of `width` columns; `overhead` is sfsample's share of one CPU."""
        body = self._body(width, height - _FRAME_LINES, stats.mode)
        lines = [*self._head(stats, overhead, window_s), *body, self._foot()]
        lines = [Line(fit(printable(line.text), width), line.style) for line in lines]
        return lines[: max(0, height)]

    def _head(self, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        table, pauses = self.table, stats.pauses
        pause = "pause none"
        if stats.timers_since_s is None and pauses.count:
            p50, p99, longest = map(brief_time, (pauses.percentile(50), pauses.percentile(99), pauses.max))
            pause = f"pause p50 {p50} p99 {p99} max {longest}"
        losses = (
            f"truncated {_percent(table.truncated, table.total)}  "
            f"missed {stats.late_ticks} of {stats.ticks} ticks"
        )
        if stats.coverage is not None:
            losses += f"  coverage {_percent(round(1000 * stats.coverage), 1000)}"
        paused = "  PAUSED" if self.paused else ""
        return [
            Line(f"sfsample top  {self.title}  {table.total} samples in {window_s:g} s{paused}", TITLE),
            Line(
                f"CPU {_percent(self.cpu_ns, self.span_ns)}  sampler {100 * overhead:.1f} % of a CPU  {pause}"
            ),
            Line(losses, TITLE if table.truncated or stats.late_ticks else FAINT),
            Line(self._column_titles(), TITLE),
        ]

    def _column_titles(self) -> str:
        marks = (" ", "*") if self.sort_by_second else ("*", " ")
        if self.view != FUNCTIONS:
            number, name = ("TID", "THREAD") if self.view == THREADS else ("PID", "PROCESS")
            waits = "WAITS FOR" * any(row.wait for row in self.table.rows)
            task = f"{number}  {name:<{_NAME_WIDTH}}  {waits}".rstrip()
            return f" SHARE{marks[0]}     CPU{marks[1]}         {task}"
        what = "FUNCTION" if self.callers_of is None else f"CALLERS OF {self.callers_of}"
        first = "OWN " if self.callers_of is None else "CALL"
        task = "" if self.task is None else f"  ({_task_text(self.task)})"
        return f"  {first}{marks[0]}   TOTAL{marks[1]}   {what}{task}"

    def _body(self, width: int, height: int, mode: str | None) -> list[Line]:
        """Return the table as `height` lines."""
        rows, selected, height = self.table.rows, self.selected, max(0, height)
        first = max(0, min(selected - height // 2, len(rows) - height))
        shown = rows[first : first + height]
        lines = [self._row(row, width, at == selected) for at, row in enumerate(shown, first)]
        if not rows:
            lines = [Line(self._why_empty(mode), FAINT)][:height]
        return lines + [Line("")] * (height - len(lines))

    def _why_empty(self, mode: str | None) -> str:
        if self.word and self.table.total:
            return f"no match for {self.word!r}: Escape ends the search"
        if self.callers_of is not None and self.table.total:
            return f"{self.callers_of} has no callers: it is the outermost function"
        hint = "" if mode == "wall" else ": no thread runs (--mode wall shows sleeping threads)"
        return f"no samples{hint}"

    def _row(self, row: Row, width: int, selected: bool) -> Line:
        style = SELECTED if selected else PLAIN
        second = _percent(row.second, self.table.total if row.task is None else self.span_ns)
        text = f"{_percent(row.first, self.table.total):>7} {second:>8}   "
        if row.task is not None:
            return Line(f"{text}{row.where:>9}  {row.name:<{_NAME_WIDTH}}  {row.wait}".rstrip(), style)
        room = width - len(text) - columns(row.name) - columns(row.where) - 2
        return Line(f"{text}{row.name}{' ' * room}  {row.where}" if room > 0 else text + row.name, style)

    def _foot(self) -> Line:
        word = self.word
        if self.typing:
            return Line(f"/{word}_", TITLE)
        hint = f"[only names with {word!r}; Escape clears it]  " if word else ""
        return Line(hint + KEYS, FAINT)


def _task_text(task: TaskKey) -> str:
    return f"thread {task.tid}" if isinstance(task, ThreadKey) else f"process {pid_of(task)}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def make_table(
    records: Sequence[WindowRecord], rows: Iterable[Row], word: str, *, sort_by_second: bool
) -> Table:
    """Return a table of the rows whose `name` or `where` contains `word`, the largest first."""
    word = word.lower()
    matches = (row for row in rows if word in row.name.lower() or word in row.where.lower())
    truncated = sum(record.times for record in records if record.key.stop_reason is not StopReason.OUTERMOST)

    def order(row: Row) -> tuple[int, int, str]:
        numbers = (-row.second, -row.first) if sort_by_second else (-row.first, -row.second)
        return (*numbers, row.name)

    return Table(tuple(sorted(matches, key=order)), sum(record.times for record in records), truncated)


def function_rows(
    records: Iterable[WindowRecord], find_names: FindNames, callers_of: str | None
) -> Iterator[Row]:
    """Return a row for each function, or for each caller of the function `callers_of`."""
    own: Counter[FunctionName] = Counter()
    total: Counter[FunctionName] = Counter()
    for record in records:
        names = [name for location in record.key.locations for name in find_names(location)]
        frames = _callers(names, callers_of)
        if frames:
            own[frames[0]] += record.times
        for name in set(frames):
            total[name] += record.times
    return (Row(*name, own[name], total[name]) for name in total)


def _callers(frames: list[FunctionName], function: str | None) -> list[FunctionName]:
    """Return the callers of the outermost frame of `function`; if `function` is None, return all frames."""
    if function is None:
        return frames
    ends = (at for at, (name, _) in enumerate(frames, 1) if name == function)
    return frames[max(ends, default=len(frames)) :]


def task_rows(records: Iterable[WindowRecord], profile: Profile, *, threads: bool) -> Iterator[Row]:
    """Yield a row for each thread, or for each process; `profile` has their names."""
    samples: Counter[TaskKey] = Counter()
    cpu_ns: Counter[TaskKey] = Counter()
    waits: dict[TaskKey, str] = {}
    for record in records:
        task = record.key.thread if threads else record.key.process_key
        samples[task] += record.times
        cpu_ns[task] += record.cpu_ns
        if threads:  # the outermost wait is the thread's own; with --blame, waits of lock holders follow
            places = reversed(record.key.locations)
            waits[task] = next((f"[{place.wait.text}]" for place in places if place.wait), "")
    for task, count in samples.items():
        if isinstance(task, ThreadKey):
            name, number = profile.threads.get(task), task.tid or pid_of(task.process_key)
        else:
            name, number = profile.processes.get(task), pid_of(task)
        yield Row(name or "?", str(number), count, cpu_ns[task], task, waits.get(task, ""))
