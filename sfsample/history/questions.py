"""What one can ask a history, and what an answer has not: the slices of a time, a deploy, a comparison."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import inf
from typing import NamedTuple

from sfsample.core.foreign import utc
from sfsample.errors import SfsampleError
from sfsample.history.facts import Selection, SliceFacts
from sfsample.history.ordinary import ordinary_pairs
from sfsample.history.store import History
from sfsample.report.difference import Ordinary, Side, count
from sfsample.report.report import Report

_MAX_SERVICES = 10  # that an error lists
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


class Compared(NamedTuple):
    """Two times, the ordinary ones that they are judged by, and their reports, if these are kept."""

    sides: list[Side]
    ordinary: Ordinary
    reports: list[Report]


def with_owner(history: History, selection: Selection) -> Selection:
    """Return a selection; the owner of its service may be left out if there is only one."""
    if selection.service is None or history.slices(selection):
        return selection
    there = {facts.service for facts in history.slices(selection._replace(service=None))}
    found = sorted(service for service in there if service.partition("/")[2] == selection.service)
    if len(found) > 1:
        raise SfsampleError(f"several owners have it: {', '.join(found)}", "use --service OWNER/NAME")
    return selection._replace(service=found[0]) if found else selection


def choose(history: History, selection: Selection, *, one_service: bool = True) -> list[SliceFacts]:
    """Return the slices, of which there are some, and of one service.  Raises SfsampleError."""
    slices = history.slices(selection)
    if not slices:
        raise SfsampleError(
            f"no slice is selected: {_selected(selection)}", *contents(history, selection.service)
        )
    services = sorted({facts.service for facts in slices})
    if one_service and len(services) > 1:
        raise SfsampleError(f"several services are selected: {', '.join(services)}", "use --service NAME")
    return slices


def answer(selection: Selection, slices: list[SliceFacts], report: Report) -> Report:
    """Return a report that says what it has not.  Raises SfsampleError if it has nothing."""
    if not report.total():
        raise SfsampleError(f"no slice can be read: {count_text(len(slices))} of {slices[0].service}",
                            "sfsample history check shows what is wrong")  # fmt: skip
    missing = _missing(selection, slices, report)
    return report._replace(stats=report.stats.having(missing=missing)) if missing else report


def missing_from(report: Report) -> list[str]:
    """Return what an answer says that it has not."""
    return report.stats.texts("missing")


def _missing(selection: Selection, slices: list[SliceFacts], report: Report) -> list[str]:
    """Return what an answer has not: the time without slices, and the slices that could not be read."""
    begin_s, end_s, now_s = selection.begin_s, selection.end_s, time.time()
    if end_s == inf:
        end_s = now_s if begin_s else max(each.end_s for each in slices)
    begin_s = begin_s or slices[0].begin_s
    allowed_s = max(each.end_s - each.begin_s for each in slices)  # at both ends half of a slice
    allowed_s *= 2 if abs(end_s - now_s) < allowed_s else 1  # one is still being recorded
    covered_s, until_s = 0.0, begin_s
    for each in slices:  # of merged ones only the time that was recorded
        recorded_s = min(each.end_s - each.begin_s, (each.duration_ns or inf) / 1e9)
        ends_s = min(each.begin_s + recorded_s, end_s)
        covered_s += max(0.0, ends_s - max(each.begin_s, until_s))
        until_s = max(until_s, ends_s)
    found, samples = [], sum(each.samples for each in slices)
    if end_s - begin_s - covered_s > allowed_s:
        found.append(f"there are slices for {_long(covered_s)} of {_long(end_s - begin_s)}")
    if report.total() != samples:
        found.append(f"slices with {samples - report.total():,} of {samples:,} samples could not be read")
    return found


def _selected(selection: Selection) -> str:
    end = "now" if selection.end_s == inf else utc(selection.end_s)
    parts = [
        selection.service and f"--service {selection.service}",
        f"{utc(selection.begin_s)} to {end} UTC" if selection.begin_s else "",
        *(f"--label {key}={value}" for key, value in selection.labels.items()),
        selection.build_id and f"build-id {selection.build_id}",
    ]
    return ", ".join(filter(None, parts)) or "the history is empty"


def contents(history: History, wanted: str | None = None) -> Iterator[str]:
    """Yield what there is: a line for the service that is wanted, else for each of some."""
    slices: dict[str, list[SliceFacts]] = {}
    for facts in history.slices():
        slices.setdefault(facts.service, []).append(facts)
    if not slices:
        yield f"{history.directory} has no slice"
    shown = [wanted] if wanted in slices else sorted(slices)[:_MAX_SERVICES]
    for service in filter(None, shown):
        found = slices[service]
        last = max(facts.end_s for facts in found)
        times = f"{utc(found[0].begin_s)} to {utc(last)} UTC"
        yield f"there is {service}: {count_text(len(found))}, {times}"
    if wanted not in slices and len(slices) > len(shown):
        yield f"and {len(slices) - len(shown)} more services: sfsample history list shows them"


def compare(history: History, compared: Sequence[Selection], *, keep_reports: bool) -> Compared:
    """Compare the slices of two selections."""
    before, after = chosen = [choose(history, selection) for selection in compared]
    service = Selection(before[0].service, labels=compared[0].labels)
    pairs, what = ordinary_pairs(history.slices(service), before, after)
    spans = [*dict.fromkeys(chain.from_iterable(pairs))]
    usual = [service._replace(begin_s=span.begin_s, end_s=span.end_s) for span in spans]
    kept: list[Report] = []
    sides: list[Side] = []
    ids = [{facts.id for facts in slices} for slices in chosen]
    missing = ["both times have slices in common"] if ids[0] & ids[1] else []
    for at, report in enumerate(history.reports([*compared, *usual])):
        if at < len(chosen):
            lacks = missing_from(answer(compared[at], chosen[at], report))
            missing += [f"{('before', 'after')[at]}: {text}" for text in lacks]
        sides.append(count(report, _name(chosen[at]) if at < len(chosen) else ""))
        kept += [report] if at < len(chosen) and keep_reports else []
    of = dict(zip(spans, sides[2:], strict=True))
    gaps = [gap for selection in compared for gap in history.gaps(selection)]
    missing += [f"no slices {utc(gap.begin_s)} to {utc(gap.end_s)} UTC: {gap.why}" for gap in gaps]
    warnings = (*missing, *_differing([*before, *after]))
    ordinary = Ordinary(tuple((of[one], of[two]) for one, two in pairs), what, warnings)
    return Compared(sides[:2], ordinary, kept)


def deploy(history: History, selection: Selection, to_build: str, length_s: float) -> list[Selection]:
    """Return the times before and after the last change of the build-id (to one that begins so)."""
    slices = choose(history, selection)
    built = [each for each in slices if each.build_id]
    changes = [
        (old, new)
        for old, new in pairwise(built)
        if old.build_id != new.build_id and (new.build_id or "").startswith(to_build)
    ]
    if not changes:
        what = f" to {to_build}" if to_build else ""
        builds = ", ".join(dict.fromkeys(each.build_id or "" for each in built)) or "none"
        raise SfsampleError(f"no change of the build-id{what}: {slices[0].service}",
                            f"its builds: {builds}; or compare two times, with --at and --with")  # fmt: skip
    old, new = changes[-1]
    labels = selection.labels
    return [
        Selection(old.service, old.end_s - length_s, old.end_s, labels, old.build_id or ""),
        Selection(new.service, new.begin_s, new.begin_s + length_s, labels, new.build_id or ""),
    ]


def _differing(slices: list[SliceFacts]) -> Iterator[str]:
    """Yield a sentence for each thing that should be the same in all slices, and is not."""
    for what, values in (("rate", {f"{facts.rate_hz or 0:g} Hz" for facts in slices}),
                         ("mode", {facts.mode or "unknown" for facts in slices}),
                         ("tier", {facts.tier for facts in slices})):  # fmt: skip
        if len(values) > 1:
            yield f"the slices have not all the same {what}: {', '.join(sorted(values))}"


def _name(slices: list[SliceFacts]) -> str:
    """Return what an input of a comparison is, in words."""
    tiers = {facts.tier for facts in slices} - {"1m"}
    merged = f", merged to {' and '.join(sorted(tiers))}" if tiers else ""
    return f"{slices[0].service} ({count_text(len(slices))}{merged})"


def _long(time_s: float) -> str:
    """Return a time in its two largest units: "1 h 5 min"."""
    rest, parts = round(time_s), []
    for size, unit in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
        rest %= size
    return " ".join(parts[:2]) or "0 s"


def count_text(number: int) -> str:
    """Return a number of slices, in words."""
    return f"{number:,} slice{'' if number == 1 else 's'}"
