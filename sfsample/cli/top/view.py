"""Computes the lines that `top` shows, and the effect of each key.

Invariant: `screen` returns at most as many lines as the terminal has, and no line is wider than the terminal;
every text from the target is made printable (tests/cli/top/test_view.py).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from sfsample.core.printable import columns, fit, printable
from sfsample.core.quantities import brief_time
from sfsample.modules.location import Location, pid_of
from sfsample.recording.profile import Profile, WindowRecord
from sfsample.recording.sample import StackKey, ThreadKey
from sfsample.recording.stats import Stats
from sfsample.report.report import OUTERMOST, SAMPLES, WALL, Report, ReportBuilder, ReportThread
from sfsample.report.stats import ReportStats
from sfsample.report.waits import fold_idle, lock_rows, lock_wait, wait_frame, wait_lines
from sfsample.symbolize.named_frame import NamedFrame

PLAIN, TITLE, SELECTED, FAINT = "plain", "title", "selected", "faint"
_NAME_WIDTH = 15  # columns: the longest name of a thread
FUNCTIONS, THREADS, PROCESSES, WAITS = "functions", "threads", "processes", "waits"
_NEXT = {FUNCTIONS: THREADS, THREADS: PROCESSES, PROCESSES: FUNCTIONS, WAITS: THREADS}  # key `t`
KEYS = "q quit  w waits  t threads, processes  s sort  p pause  / search  c callers  Esc"
_STEPS = {"up": -1, "down": 1, "page up": -10, "page down": 10}  # rows
_TASKS = ("[task ", "[goroutine ")  # starts of the outermost frames of tasks and goroutines (--tasks)

FunctionName = tuple[str, str]  # a function and its module
FindFrames = Callable[[Location], Sequence[NamedFrame]]  # the innermost inlined function first
TaskKey = ThreadKey | int  # a thread, or the key of a process


class Row(NamedTuple):
    """A row of the table: a function, a task (a thread or a process), or a lock."""

    name: str
    where: str  # module of the function, id of the task, or holder of the lock
    first: int  # own samples of the function, samples of the task, or ns that threads waited for the lock
    second: int  # samples of the function and of its callees, CPU time of the task in ns, or most waiters
    task: TaskKey | None = None  # None for a function or a lock
    wait: str = ""  # last wait of a thread; "": the thread ran


class Line(NamedTuple):
    """One line, and the style in which `top` draws the line."""

    text: str
    style: str = PLAIN


class TopView:
    """The choices that the user makes with keys, and the rows of the last update."""

    def __init__(self, title: str, *, blame: bool = False) -> None:
        self.title, self._blame = title, blame  # `blame`: the samples have the holders of locks
        self._records: Sequence[WindowRecord] = ()  # samples in the window; old ones while the view is paused
        self.report = Report((), (), ())  # samples of the rows
        self.rows: list[Row] = []
        self.span_ns = 0  # time that the table covers
        self.cpu_ns = 0  # CPU time of all records in this time
        self.view = FUNCTIONS
        self.task: TaskKey | None = None  # the only thread or process whose functions are shown
        self.lock: str | None = None  # the lock whose waiters are shown
        self.callers_of: str | None = None
        self.sort_by_second = False
        self.paused = False
        self.word = ""
        self.typing = False
        self.selected = 0

    def key(self, key: str) -> None:
        """Obey a key: a letter or the name of a key."""
        if self.typing:
            self._type(key)
            return
        match key:
            case "t":
                self._show(_NEXT[self.view])
            case "w":
                self._show(WAITS)
            case "s":
                self.sort_by_second = not self.sort_by_second
            case "p" | " ":
                self.paused = not self.paused
            case "/":
                self.typing, self.word = True, ""
            case "escape":
                self._back()
            case "c" | "enter" if self.rows:
                self._enter(self.rows[self.selected])
        self.selected += _STEPS.get(key, 0)
        self._select_a_row()

    def _show(self, view: str) -> None:
        self.view, self.lock, self.callers_of, self.selected = view, None, None, 0

    def _select_a_row(self) -> None:
        self.selected = max(0, min(self.selected, len(self.rows) - 1))

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
        elif self.view == WAITS:
            self.lock, self.view = row.name, FUNCTIONS
        else:
            self.callers_of = row.name
        self.selected, self.word = 0, ""

    def _back(self) -> None:
        if self.word:
            self.word = ""
        elif self.callers_of is not None:
            self.callers_of = None
        elif self.lock is not None:
            self._show(WAITS)
        else:
            self.task, self.view = None, FUNCTIONS
        self.selected = 0

    def update(
        self, records: Sequence[WindowRecord], find_frames: FindFrames, profile: Profile, span_ns: int
    ) -> None:
        """Count the records of the last `span_ns`; `profile` has the names of threads and processes."""
        if not self.paused:
            self._records, self.span_ns = records, span_ns
        records, task = self._records, self.task
        self.cpu_ns = sum(record.cpu_ns for record in records)
        if task is not None:
            records = [record for record in records if task in (record.key.thread, record.key.process_key)]
        report = report_of(records, find_frames, profile)
        if self.view == WAITS or self.lock is not None:
            report, _ = fold_idle(report)
        if self.lock is not None:
            report = only_waiters(report, self.lock)
        if self.view == WAITS:
            rows = iter([Row(row.name, row.holder, row.ns, row.most) for row in lock_rows(report)])
        elif self.view == FUNCTIONS:
            rows = function_rows(report, self.callers_of)
        else:
            rows = task_rows(records, find_frames, profile, threads=self.view == THREADS)
        self.report = report
        self.rows = largest_first(rows, self.word, by_second=self.sort_by_second)
        self._select_a_row()

    def screen(self, width: int, height: int, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        """Return the lines for a terminal of `width` columns; `overhead` is sfsample's share of one CPU."""
        head = self._head(stats, overhead, window_s)
        lines = [*head, *self._body(width, height - len(head) - 1, stats.mode), self._foot()]
        lines = [Line(fit(printable(line.text), width), line.style) for line in lines]
        return lines[: max(0, height)]

    def _head(self, stats: Stats, overhead: float, window_s: float) -> list[Line]:
        report, pauses = self.report, stats.pauses
        truncated = sum(stack.weights[0] for stack in report.stacks if stack.stop_reason != OUTERMOST)
        pause = "pause none"
        if stats.timers_since_s is None and pauses.count:
            p50, p99, longest = map(brief_time, (pauses.percentile(50), pauses.percentile(99), pauses.max))
            pause = f"pause p50 {p50} p99 {p99} max {longest}"
        share, cpu = _percent(truncated, report.total()), _percent(self.cpu_ns, self.span_ns)
        losses = f"truncated {share}  missed {stats.late_ticks} of {stats.ticks} ticks"
        if stats.coverage is not None:
            losses += f"  coverage {_percent(round(1000 * stats.coverage), 1000)}"
        paused = "  PAUSED" if self.paused else ""
        classes = next(wait_lines(report, {}), "") if self.view == WAITS else ""
        return [
            Line(f"sfsample top{paused}  {self.title}  {report.total()} samples in {window_s:g} s", TITLE),
            Line(f"CPU {cpu}  sampler {100 * overhead:.1f} % of a CPU  {pause}"),
            Line(losses, TITLE if truncated or stats.late_ticks else FAINT),
            *([Line(classes)] if classes else []),
            Line(self._column_titles(), TITLE),
        ]

    def _column_titles(self) -> str:
        marks = (" ", "*") if self.sort_by_second else ("*", " ")
        if self.view in (THREADS, PROCESSES):
            number, name = ("TID", "THREAD") if self.view == THREADS else ("PID", "PROCESS")
            waits = "WAITS FOR" * any(row.wait for row in self.rows)
            task = f"{number}  {name:<{_NAME_WIDTH}}  {waits}".rstrip()
            return f" SHARE{marks[0]}     CPU{marks[1]}         {task}"
        task = "" if self.task is None else f"  ({_task_text(self.task)})"
        if self.view == WAITS:
            hint = "" if self._blame or not self.rows else "  (--blame shows holders)"
            return f"   TIME{marks[0]}   SHARE AT ONCE{marks[1]}  THREADS WAIT FOR{task}{hint}"
        what = "FUNCTION" if self.callers_of is None else f"CALLERS OF {self.callers_of}"
        first = "OWN " if self.callers_of is None else "CALL"
        task += "" if self.lock is None else f"  (waits for {self.lock})"
        return f"  {first}{marks[0]}   TOTAL{marks[1]}   {what}{task}"

    def _body(self, width: int, height: int, mode: str | None) -> list[Line]:
        rows, selected, height = self.rows, self.selected, max(0, height)
        has_holders = self.view == WAITS and any(row.where for row in rows)
        number = max(1, height // 2) if has_holders else height
        first = max(0, min(selected - number // 2, len(rows) - number))
        shown = enumerate(rows[first : first + number], first)
        lines = [line for at, row in shown for line in self._row(row, width, at == selected)]
        lines = (lines if rows else [Line(self._why_empty(mode), FAINT)])[:height]
        return lines + [Line("")] * (height - len(lines))

    def _why_empty(self, mode: str | None) -> str:
        if self.view == WAITS and mode == "cpu":
            return "waits are seen in wall mode: sfsample top --mode wall PID"
        if self.word and self.report.total():
            return f"no match for {self.word!r}: Escape ends the search"
        if self.callers_of is not None and self.report.total():
            return f"{self.callers_of} has no callers: it is the outermost function"
        if self.lock is not None or (self.view == WAITS and self.report.total()):
            return f"no thread waits for {self.lock or 'another thread'}"
        hint = "" if mode == "wall" else ": no thread runs (--mode wall shows sleeping threads)"
        return f"no samples{hint}"

    def _row(self, row: Row, width: int, selected: bool) -> list[Line]:
        style = SELECTED if selected else PLAIN
        if self.view == WAITS:
            share = _percent(row.first, self.report.total(WALL))
            lock = f"{row.first / 1e9:>6.2f} s {share:>7} {row.second or '-':>7}   {row.name}"
            return [Line(line, style) for line in (lock, f"    {row.where}")[: 1 + bool(row.where)]]
        second = _percent(row.second, self.report.total() if row.task is None else self.span_ns)
        text = f"{_percent(row.first, self.report.total()):>7} {second:>8}   "
        if row.task is not None:
            return [Line(f"{text}{row.where:>9}  {row.name:<{_NAME_WIDTH}}  {row.wait}".rstrip(), style)]
        room = width - len(text) - columns(row.name) - columns(row.where) - 2
        return [Line(f"{text}{row.name}{' ' * room}  {row.where}" if room > 0 else text + row.name, style)]

    def _foot(self) -> Line:
        if self.typing:
            return Line(f"/{self.word}_", TITLE)
        hint = f"[only names with {self.word!r}; Escape clears it]  " if self.word else ""
        return Line(hint + KEYS, FAINT)


def _task_text(task: TaskKey) -> str:
    return f"thread {task.tid}" if isinstance(task, ThreadKey) else f"process {pid_of(task)}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def largest_first(rows: Iterable[Row], word: str, *, by_second: bool) -> list[Row]:
    """Return the rows whose `name` or `where` contains `word`, the largest first."""
    word = word.lower()

    def order(row: Row) -> tuple[int, int, str]:
        numbers = (-row.second, -row.first) if by_second else (-row.first, -row.second)
        return (*numbers, row.name)

    return sorted((row for row in rows if word in row.name.lower() or word in row.where.lower()), key=order)


def report_of(records: Iterable[WindowRecord], find_frames: FindFrames, profile: Profile) -> Report:
    """Return the samples of the window as a report; `profile` has the names of threads and processes."""
    groups = defaultdict[StackKey, list[WindowRecord]](list)
    for record in records:
        groups[record.key].append(record)
    builder, changes = ReportBuilder((SAMPLES, WALL)), defaultdict[str, list[tuple[int, int]]](list)
    for key, group in groups.items():
        frames = [frame for location in key.locations for frame in find_frames(location)]
        names = profile.processes.get(key.process_key, "?"), profile.threads.get(key.thread, "?")
        weights = sum(record.times for record in group), sum(record.wall_ns for record in group)
        thread = ReportThread(*names, pid_of(key.process_key), key.tid)
        builder.add(thread, frames, str(key.stop_reason), weights)
        if (wait := lock_wait(frames)) and not frames[-1].text.startswith(_TASKS):
            begins, ends = {row.at_ns - row.wall_ns for row in group}, {row.at_ns for row in group}
            changes[wait.name] += [(at, 1) for at in begins - ends] + [(at, -1) for at in ends - begins]
    most = {name: max(accumulate(step for _, step in sorted(rows))) for name, rows in changes.items()}
    return builder.finish()._replace(stats=ReportStats({"most_waiters": {"": most}}))


def only_waiters(report: Report, lock: str) -> Report:
    """Return the stacks that wait for a lock."""
    waits = ((lock_wait([report.frames[at] for at in stack.frames]), stack) for stack in report.stacks)
    return report._replace(stacks=tuple(stack for wait, stack in waits if wait and wait.name == lock))


def function_rows(report: Report, callers_of: str | None) -> Iterator[Row]:
    """Return a row for each function, or for each caller of `callers_of`; holders' frames do not count."""
    names = [(frame.text, (frame.module or "").rpartition("/")[2]) for frame in report.frames]
    own, total = Counter[FunctionName](), Counter[FunctionName]()
    waits = {at for at, frame in enumerate(report.frames) if frame.kind == "w"}
    for stack in report.stacks:
        begin = max((index for index, at in enumerate(stack.frames) if at in waits), default=0)
        frames = _callers([names[at] for at in stack.frames[begin:]], callers_of)
        if frames:
            own[frames[0]] += stack.weights[0]
        for name in set(frames):
            total[name] += stack.weights[0]
    return (Row(*name, own[name], total[name]) for name in total)


def _callers(frames: list[FunctionName], function: str | None) -> list[FunctionName]:
    if function is None:
        return frames
    ends = (at for at, (name, _) in enumerate(frames, 1) if name == function)
    return frames[max(ends, default=len(frames)) :]


def task_rows(
    records: Iterable[WindowRecord], find_frames: FindFrames, profile: Profile, *, threads: bool
) -> Iterator[Row]:
    """Yield a row for each thread, or for each process; `profile` has their names."""
    samples: Counter[TaskKey] = Counter()
    cpu_ns: Counter[TaskKey] = Counter()
    last: dict[TaskKey, WindowRecord] = {}
    for record in records:
        task = record.key.thread if threads else record.key.process_key
        samples[task] += record.times
        cpu_ns[task] += record.cpu_ns
        last[task] = record
    for task, (key, *_) in last.items():
        name = profile.threads.get(key.thread) if threads else profile.processes.get(key.process_key)
        number = (key.tid if threads else 0) or pid_of(key.process_key)
        frame = wait_frame([*chain.from_iterable(map(find_frames, key.locations))]) if threads else None
        yield Row(name or "?", str(number), samples[task], cpu_ns[task], task, frame.text if frame else "")
