"""A report: what a recording says, with names.  The value between a profile and every writer.

Law: plain values, no process, no files, no clock.  Tables refer to each other by index.  Every text in it is
fit for a terminal: who makes a report cleans them.  `weights` names what each stack's numbers stand for;
"samples" is always the first.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

SAMPLES, WALL, CPU = "samples", "wall_ns", "cpu_ns"
WEIGHTS = (SAMPLES, WALL, CPU)
OUTERMOST = "outermost"  # the stop reason of a stack that was seen whole


class Thread(NamedTuple):
    """Who ran; None where the source did not say."""

    process: str
    name: str
    pid: int | None = None
    tid: int | None = None


class ReportFrame(NamedTuple):
    """A place in code.  `text` is what the folded format prints; the rest is None (or "") where unknown.

    `offset` is the vaddr in the module, or the run-time address where there is no module.
    """

    text: str
    function: str | None = None
    raw: str | None = None  # the symbol as the table has it, mangled
    module: str | None = None  # a path
    build_id: str | None = None
    offset: int | None = None
    file: str | None = None
    line: int | None = None
    inlined: bool = False
    kind: str = ""  # "k" kernel, "j" JIT
    found: str = ""  # how the frame was found: a `Found`


class ReportStack(NamedTuple):
    """A stack of one thread; `frames` are indexes, innermost first; `weights` are in the report's order."""

    thread: int
    frames: tuple[int, ...]
    stop_reason: str
    weights: tuple[int, ...]


class ReportTimeline(NamedTuple):
    """Columns of one length: when a stack (an index) was seen, and for how much it stands.

    `at_ns` is since the start.  A recording too long for it keeps the first records and counts the others.
    """

    at_ns: Sequence[int]
    stack: Sequence[int]
    samples: Sequence[int]
    wall_ns: Sequence[int]
    cpu_ns: Sequence[int]
    dropped: int = 0


class Report(NamedTuple):
    """Threads, frames, stacks, and what was lost (`stats`: the object that --stats writes)."""

    threads: tuple[Thread, ...]
    frames: tuple[ReportFrame, ...]
    stacks: tuple[ReportStack, ...]
    weights: tuple[str, ...] = (SAMPLES,)
    started_ns: int | None = None  # since the epoch
    duration_ns: int | None = None
    rate_hz: float | None = None
    timeline: ReportTimeline | None = None
    stats: dict[str, Any] | None = None

    def column(self, weight: str) -> list[int]:
        """Return a weight of each stack; 0 when it is not known."""
        if weight not in self.weights:
            return [0] * len(self.stacks)
        at = self.weights.index(weight)
        return [stack.weights[at] for stack in self.stacks]

    def total(self, weight: str = SAMPLES) -> int:
        """Return the sum of a weight over all stacks; 0 when it is not known."""
        return sum(self.column(weight))

    def root(self, stack: ReportStack, *, threads: bool) -> str:
        """Return the first frame of a stack: the process, or `name/TID`."""
        thread = self.threads[stack.thread]
        if not threads:
            return thread.process
        return thread.name if thread.tid is None else f"{thread.name}/{thread.tid}"


def truncation(stack: ReportStack) -> str | None:
    """Return the mark of a stack whose walk did not reach its outermost frame."""
    return None if stack.stop_reason == OUTERMOST else f"[truncated: {stack.stop_reason}]"
