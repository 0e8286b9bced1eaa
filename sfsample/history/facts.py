"""Defines the values of a history; `read_facts` and `read_gap` check them, as a file can contain anything."""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar

from sfsample.core.foreign import total
from sfsample.errors import BadInput
from sfsample.recording.stats import coverage_of
from sfsample.report.merge import sum_known
from sfsample.report.report import CPU, WEIGHTS, Report

_COUNTS = ("cpu_charged_ns", "cpu_sampled_ns", "ticks", "late_ticks")  # counts in a report's statistics
TIERS = {"1m": 60, "10m": 600, "1h": 3600}  # name of a tier -> length of its slices, in seconds
_MAX_TIME_S = 9.2e9  # seconds since the epoch (year 2261); as ns, they fit into 64 bits
_MAX_COUNT = (1 << 63) - 1
_MAX_TEXT = 1 << 16  # characters
_K = TypeVar("_K", bound=Hashable)
_Check = Callable[[object], bool]


class Slice(NamedTuple):
    """A slice that a watch has recorded; times are in seconds since the epoch."""

    begin_s: float
    end_s: float
    service: str
    report: Report


class Gap(NamedTuple):
    """A period without slices, and the reason."""

    begin_s: float
    end_s: float
    service: str
    why: str


class SliceFacts(NamedTuple):
    """The facts of a slice in a history; the fields after `id` are the columns of the table."""

    id: str
    begin_s: float
    end_s: float
    service: str
    labels: Mapping[str, str]
    build_id: str | None  # build-id of the executable
    host: str | None
    rate_hz: float | None
    mode: str | None
    weights: tuple[str, ...]  # names of the weights of the stacks
    duration_ns: int | None  # time that was recorded; the sum if slices were merged
    samples: int
    cpu_charged_ns: int  # CPU time of the threads
    cpu_sampled_ns: int  # CPU time that samples represent
    ticks: int
    late_ticks: int
    recorder: str | None  # program that recorded, and its version
    tier: str
    pinned: bool  # True: the slice is not merged, and is deleted last

    @property
    def number(self) -> int:
        """The row of the slice in the tables of its file."""
        return int(self.id.rpartition(".")[2])

    @property
    def coverage(self) -> float | None:
        """The share of the CPU time that samples represent; None: no CPU time was used."""
        return coverage_of(self.cpu_sampled_ns, self.cpu_charged_ns)


class Selection(NamedTuple):
    """Selects slices by service, period, labels (all must match) and the first digits of the build-id."""

    service: str | None = None
    begin_s: float = 0.0
    end_s: float = inf
    labels: Mapping[str, str] = {}
    build_id: str = ""

    def has(self, facts: SliceFacts) -> bool:
        """Return True if a slice is selected: its middle lies in the period, or it covers the period."""
        inside = self.begin_s <= (facts.begin_s + facts.end_s) / 2 < self.end_s
        around = facts.begin_s <= self.begin_s and self.end_s <= facts.end_s
        return (
            (inside or around)
            and self.service in (None, facts.service)
            and self.labels.items() <= facts.labels.items()
            and (facts.build_id or "").startswith(self.build_id)
        )

    def has_gap(self, gap: Gap) -> bool:
        """Return True if a gap of the service overlaps the period."""
        return gap.begin_s < self.end_s and self.begin_s < gap.end_s and self.service in (None, gap.service)


def facts_of(closed: Slice) -> SliceFacts:
    """Return the facts of a slice.  Raises BadInput if a history cannot keep the slice."""
    report, stats, target = closed.report, closed.report.stats, closed.report.target or {}
    known = (*report.weights, *((CPU,) if stats.has_cpu_time else ()))  # a measured CPU time may be 0
    weights = tuple(name for name in WEIGHTS if name in known)
    counts: dict[str, Any] = {name: stats.number(name) for name in _COUNTS}
    facts = SliceFacts(
        "", float(closed.begin_s), float(closed.end_s), closed.service, report.labels or {},
        target.get("build_id"), report.host, report.rate_hz, stats.text("mode"), weights,
        report.duration_ns, report.total(), recorder=stats.text("recorder"), tier="1m", pinned=False,
        **counts,
    )  # fmt: skip
    return read_facts("", as_row(facts))


def merged_facts(group: Sequence[SliceFacts], tier: str) -> SliceFacts:
    """Return the facts of the slice that replaces a group of slices with the same `merge_key`."""
    added = {name: sum(getattr(facts, name) for facts in group) for name in ("samples", *_COUNTS)}
    return group[0]._replace(
        id="", begin_s=min(facts.begin_s for facts in group), end_s=max(facts.end_s for facts in group),
        duration_ns=sum_known(facts.duration_ns for facts in group), tier=tier, **added,
    )  # fmt: skip


def grouped(slices: Iterable[SliceFacts], key: Callable[[SliceFacts], _K]) -> dict[_K, list[SliceFacts]]:
    """Return the slices by their key; slices with the same key keep their order."""
    groups: dict[_K, list[SliceFacts]] = {}
    for facts in slices:
        groups.setdefault(key(facts), []).append(facts)
    return groups


def merge_key(facts: SliceFacts, tier: str) -> tuple[object, ...]:
    """Return a key; slices with equal keys become one slice of `tier`.  A pinned slice has its own key."""
    what = (facts.service, tuple(sorted(facts.labels.items())), facts.build_id, facts.host, facts.rate_hz,
            facts.mode, facts.weights, facts.duration_ns is None, facts.recorder)  # fmt: skip
    return (*what, facts.id if facts.pinned else facts.begin_s // TIERS[tier])


def as_row(facts: SliceFacts) -> tuple[Any, ...]:
    """Return the row of a slice: a value for each of `COLUMNS`."""
    row = facts._replace(labels=json.dumps(dict(facts.labels)),  # type: ignore[arg-type]
                         weights=",".join(facts.weights), pinned=int(facts.pinned))  # type: ignore[arg-type]  # fmt: skip
    return row[1:]


def read_facts(name: str, row: Sequence[Any]) -> SliceFacts:
    """Return the facts in a row.  Raises BadInput."""
    for (column, _, is_valid), value in zip(COLUMNS, row, strict=True):
        if not is_valid(value):
            raise BadInput(f"slice {name}: {column} is not valid")
    facts = SliceFacts(name, *row)
    labels = total(json.loads)(str(facts.labels))
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise BadInput(f"slice {name}: labels are not valid")
    if facts.end_s < facts.begin_s:
        raise BadInput(f"slice {name}: ends before it begins")
    weights = tuple(str(facts.weights).split(","))
    return facts._replace(labels=labels, weights=weights, pinned=bool(facts.pinned))


def read_gap(row: Sequence[Any]) -> Gap:
    """Return the gap in a row.  Raises BadInput."""
    begin_s, end_s, service, why = row
    if not (all(map(_is_time, row[:2])) and all(map(_is_text, row[2:])) and begin_s <= end_s):
        raise BadInput("a gap is not valid")
    return Gap(begin_s, end_s, service, why)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _number(low: float, high: float, *types: type) -> _Check:
    return lambda value: type(value) in types and low <= value <= high  # type: ignore[operator]


def _or_none(is_valid: _Check) -> _Check:
    return lambda value: value is None or is_valid(value)


_is_time, _is_count = _number(0, _MAX_TIME_S, int, float), _number(0, _MAX_COUNT, int)
_WEIGHTS = {",".join((WEIGHTS[0], *more)) for more in ((), WEIGHTS[1:2], WEIGHTS[2:], WEIGHTS[1:])}
COLUMNS: tuple[tuple[str, str, _Check], ...] = (
    ("begin_s", "REAL", _is_time),
    ("end_s", "REAL", _is_time),
    ("service", "TEXT", _is_text),
    ("labels", "TEXT", _is_text),
    ("build_id", "TEXT", _or_none(_is_text)),
    ("host", "TEXT", _or_none(_is_text)),
    ("rate_hz", "REAL", _or_none(_number(1e-9, 1e9, int, float))),
    ("mode", "TEXT", {None, "cpu", "wall"}.__contains__),
    ("weights", "TEXT", _WEIGHTS.__contains__),
    ("duration_ns", "INTEGER", _or_none(_is_count)),
    ("samples", "INTEGER", _is_count),
    ("cpu_charged_ns", "INTEGER", _is_count),
    ("cpu_sampled_ns", "INTEGER", _is_count),
    ("ticks", "INTEGER", _is_count),
    ("late_ticks", "INTEGER", _is_count),
    ("recorder", "TEXT", _or_none(_is_text)),
    ("tier", "TEXT", TIERS.__contains__),
    ("pinned", "INTEGER", {0, 1}.__contains__),
)
