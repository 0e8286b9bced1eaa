"""The statistics of a report: counts and losses of its recording.

`--stats` writes the statistics as a JSON object; a file with a report may have only a part of this object.  A
value with a wrong type counts as unknown, because a file can contain anything.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from typing import Any, Self

from sfsample.recording.stats import Loss, coverage_of, losses

_ADDED = ("ticks", "late_ticks", "samples", "eintr_prone_stops", "cpu_charged_ns", "cpu_sampled_ns",
          "spared_ticks")  # fmt: skip
_ADDED_BY_NAME = ("captures", "stacks", "frames")
_SAME = ("mode", "recorder")  # texts that a sum keeps if they are the same in all parts
_BY_SECOND, _MAX_MS = "cpu_ms_by_second", 1 << 32


@dataclass(frozen=True, slots=True)
class ReportStats:
    """`document`: plain JSON values by the keys of `sfsample.stats/1`; empty if nothing is known."""

    document: Mapping[str, Any] = field(default_factory=dict)

    def having(self, **values: object) -> Self:
        """Return these statistics with other values of some keys."""
        return type(self)({**self.document, **values})

    def only(self, keys: Iterable[str]) -> Self:
        """Return only the values of some keys; a key without a value is left out."""
        return type(self)({key: value for key in keys if (value := self.document.get(key))})

    def number(self, key: str) -> int:
        """Return a count or a time in ns; 0 if it is unknown."""
        value = self.document.get(key)
        return value if type(value) is int and value > 0 else 0

    def text(self, key: str) -> str | None:
        """Return a text; None if it is unknown."""
        value = self.document.get(key)
        return value if isinstance(value, str) else None

    def numbers(self, key: str) -> dict[str, int]:
        """Return counts by name: `captures`, `stacks`, `frames`."""
        value = self.document.get(key)
        counts = value.items() if isinstance(value, dict) else ()
        return {name: number for name, number in counts if type(number) is int and number >= 0}

    def texts(self, key: str) -> list[str]:
        """Return a list of texts: `problems`, or `missing` (in a report from a history)."""
        value = self.document.get(key)
        return [*map(str, value)] if isinstance(value, list) else []

    @property
    def most_waiters(self) -> Counter[str]:
        """For the name of each lock: the largest number of threads that waited for the lock at one tick."""
        value = self.document.get("most_waiters")
        by_process = ReportStats(value if isinstance(value, dict) else {})
        return reduce(or_, (Counter(by_process.numbers(pid)) for pid in by_process.document), Counter())

    @property
    def has_cpu_time(self) -> bool:
        """True if the CPU time of the threads is known, even if it is 0."""
        return "cpu_charged_ns" in self.document

    @property
    def coverage(self) -> float | None:
        """The share of the CPU time that samples represent, 0 to 1; None: unknown, or no CPU time."""
        has_both = self.has_cpu_time and "cpu_sampled_ns" in self.document
        return coverage_of(self.number("cpu_sampled_ns"), self.number("cpu_charged_ns")) if has_both else None

    @property
    def cpu_ms_by_second(self) -> tuple[int, ...]:
        """The CPU time in ms that was sampled in each second of a slice; empty if it is unknown."""
        value = self.document.get(_BY_SECOND)
        if not isinstance(value, list) or not all(type(ms) is int and 0 <= ms < _MAX_MS for ms in value):
            return ()
        return tuple(value)

    def losses(self, samples: int, whole_stacks: int, rate_hz: float | None) -> list[Loss]:
        """Return every kind of loss; the arguments are facts of the report."""
        ticks, late, spared = map(self.number, ("ticks", "late_ticks", "spared_ticks"))
        failed = self.numbers("captures").get("failed", 0)
        return losses(ticks=ticks, late_ticks=late, spared_ticks=spared, failed_captures=failed,
                      samples=samples, whole_stacks=whole_stacks, rate_hz=rate_hz)  # fmt: skip


def sum_stats(parts: Iterable[ReportStats]) -> ReportStats:
    """Return the sums of the counts; values that cannot be added are left out."""
    known = [part for part in parts if part.document]
    if not known:
        return ReportStats()
    total: dict[str, Any] = {"problems": [*chain.from_iterable(part.texts("problems") for part in known)]}
    for key in _ADDED:
        total[key] = sum(part.number(key) for part in known)
    for key in _ADDED_BY_NAME:
        total[key] = dict(sum((Counter(part.numbers(key)) for part in known), Counter()))
    for key in _SAME:
        texts = {part.text(key) for part in known}
        total[key] = texts.pop() if len(texts) == 1 else None
    total["most_waiters"] = {"": dict(reduce(or_, (part.most_waiters for part in known)))}
    return ReportStats(total)
