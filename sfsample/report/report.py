"""A report is a profile with names.  Every format writes a report.

A report contains plain values: no process, no open file.  The tables refer to each other by index.  The code
that makes a report cleans every text, so a writer can print each text to a terminal without changes.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from sfsample.report.stats import ReportStats
from sfsample.symbolize.named_frame import NamedFrame

_T = TypeVar("_T")
SAMPLES, WALL, CPU = "samples", "wall_ns", "cpu_ns"
WEIGHTS = (SAMPLES, WALL, CPU)
TARGET_FIELDS = ("exe", "build_id", "unit", "container", "started")  # started: seconds since the epoch
OUTERMOST = "outermost"  # the stop reason of a stack that is complete


class ReportThread(NamedTuple):
    """A thread that was sampled; an id that is None is unknown."""

    process: str
    name: str
    pid: int | None = None
    tid: int | None = None

    @property
    def label(self) -> str:
        """`name/TID`, or the name alone if the id is unknown."""
        return self.name if self.tid is None else f"{self.name}/{self.tid}"


class ReportStack(NamedTuple):
    """A stack of one thread, and its weights."""

    thread: int  # index into `Report.threads`
    frames: tuple[int, ...]  # indexes into `Report.frames`, innermost first
    stop_reason: str
    weights: tuple[int, ...]  # a number for each name in `Report.weights`


class ReportTimeline(NamedTuple):
    """The samples in order of time, as columns of one length."""

    at_ns: Sequence[int]  # time since the start of the recording
    stack: Sequence[int]  # index into `Report.stacks`
    samples: Sequence[int]
    wall_ns: Sequence[int]
    cpu_ns: Sequence[int]
    dropped: int = 0  # number of later samples, for which the timeline had no space


class Report(NamedTuple):
    """The tables and the facts of one recording, or of several merged recordings."""

    threads: tuple[ReportThread, ...]
    frames: tuple[NamedFrame, ...]
    stacks: tuple[ReportStack, ...]
    weights: tuple[str, ...] = (SAMPLES,)  # names of the numbers of each stack; the first is "samples"
    started_ns: int | None = None  # start of the recording, since the epoch
    duration_ns: int | None = None
    rate_hz: float | None = None
    timeline: ReportTimeline | None = None
    stats: ReportStats = ReportStats()
    host: str | None = None  # name of the machine that recorded
    labels: dict[str, str] | None = None  # labels that all processes have in common
    target: dict[str, Any] | None = None  # `TARGET_FIELDS` that are the same for all processes

    def column(self, weight: str) -> list[int]:
        """Return one weight of each stack; zeros if the report lacks this weight."""
        if weight not in self.weights:
            return [0] * len(self.stacks)
        at = self.weights.index(weight)
        return [stack.weights[at] for stack in self.stacks]

    def total(self, weight: str = SAMPLES) -> int:
        """Return the sum of a weight over all stacks; 0 if the report lacks this weight."""
        return sum(self.column(weight))

    def process_names(self) -> str:
        """Return the distinct names of the processes, separated by commas; "" if there are none."""
        return ", ".join(dict.fromkeys(thread.process for thread in self.threads))


class Numbers(dict[_T, int]):
    """Gives each value a number from 0 on, in the order of first look-ups."""

    def __missing__(self, value: _T) -> int:
        self[value] = number = len(self)
        return number


class ReportBuilder:
    """Adds up equal stacks.  Only this class makes the tables of reports, so no table has a row twice."""

    def __init__(self, weights: Sequence[str] = (SAMPLES,)) -> None:
        self.weights = tuple(weights)
        self._threads = Numbers[ReportThread]()
        self._frames = Numbers[NamedFrame]()
        self._stacks = Numbers[tuple[int, tuple[int, ...], str]]()  # thread, frames, stop reason
        self._sums: list[tuple[int, ...]] = []

    def add(
        self, thread: ReportThread, frames: Iterable[NamedFrame], stop_reason: str, weights: tuple[int, ...]
    ) -> int:
        """Add the weights of a stack (innermost frame first); return the index of the stack."""
        return self.add_row(thread, map(self.number, frames), stop_reason, weights)

    def number(self, frame: NamedFrame) -> int:
        """Return the index of a frame."""
        return self._frames[frame]

    def add_row(
        self, thread: ReportThread, frames: Iterable[int], stop_reason: str, weights: tuple[int, ...]
    ) -> int:
        """Add a stack by the indexes of its frames; faster than `add`, because no frames are compared."""
        at = self._stacks[self._threads[thread], tuple(frames), stop_reason]
        if at == len(self._sums):
            self._sums.append(weights)
        else:
            self._sums[at] = tuple(map(sum, zip(self._sums[at], weights, strict=True)))
        return at

    @property
    def sizes(self) -> tuple[int, int]:
        """The number of frames, and of stacks."""
        return len(self._frames), len(self._sums)

    def finish(self) -> Report:
        """Return the report; its times, timeline and losses are unknown."""
        stacks = tuple(ReportStack(*key, sums) for key, sums in zip(self._stacks, self._sums, strict=True))
        return Report(tuple(self._threads), tuple(self._frames), stacks, self.weights)


def truncation_mark(stack: ReportStack) -> str | None:
    """Return the mark of a truncated stack; None: the stack is complete."""
    return None if stack.stop_reason == OUTERMOST else f"[truncated: {stack.stop_reason}]"
