"""Answers questions about a history (a time, a deploy, a comparison), and says which slices are missing."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from math import inf
from typing import NamedTuple

from sfsample.core.local_time import local, local_span, zone
from sfsample.core.quantities import counted, long_time
from sfsample.errors import SfsampleError
from sfsample.history.facts import Selection, SliceFacts, grouped
from sfsample.history.ordinary import ordinary_pairs
from sfsample.history.store import History
from sfsample.report.difference import Ordinary, Side, count
from sfsample.report.report import Report

COVER_ONLY = "slices cover only"  # begin of the text about a time without slices, which is no loss
_MAX_SERVICES = 10  # services that an error lists


class Compared(NamedTuple):
    """A comparison of two times."""

    sides: list[Side]  # before and after
    ordinary: Ordinary  # pairs of ordinary times; a change must be larger than the pairs' differences
    reports: list[Report]  # reports of both sides; [] without `keep_reports`


def with_owner(history: History, selection: Selection) -> Selection:
    """Return the selection with OWNER/NAME as its service, even if the user gave only NAME."""
    if selection.service is None or history.slices(selection):
        return selection
    there = {facts.service for facts in history.slices(selection._replace(service=None))}
    matches = sorted(service for service in there if service.partition("/")[2] == selection.service)
    if len(matches) > 1:
        raise SfsampleError(f"several services have this name: {', '.join(matches)}",
                            "use --service OWNER/NAME")  # fmt: skip
    return selection._replace(service=matches[0]) if matches else selection


def choose(history: History, selection: Selection, *, one_service: bool = True) -> list[SliceFacts]:
    """Return the selected slices.  Raises SfsampleError if there are no slices, or several services."""
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
    """Add texts about missing slices to the report.  Raises SfsampleError if the report is empty."""
    if not report.total():
        raise SfsampleError(f"no slice can be read: {counted(len(slices), 'slice')} of {slices[0].service}",
                            "sfsample history check shows what is wrong")  # fmt: skip
    missing = _missing(selection, slices, report)
    return report._replace(stats=report.stats.having(missing=missing)) if missing else report


def _missing(selection: Selection, slices: list[SliceFacts], report: Report) -> list[str]:
    """Return texts about the time without slices, and about slices that could not be read."""
    begin_s, end_s, now_s = selection.begin_s, selection.end_s, time.time()
    if end_s == inf:
        end_s = now_s if begin_s else max(facts.end_s for facts in slices)
    begin_s = begin_s or slices[0].begin_s
    allowed_s = max(facts.end_s - facts.begin_s for facts in slices)  # each end may lack half a slice
    allowed_s *= 2 if abs(end_s - now_s) < allowed_s else 1  # one slice is still being recorded
    covered_s, until_s = 0.0, begin_s
    for facts in slices:  # only the recorded time of a merged slice counts
        recorded_s = min(facts.end_s - facts.begin_s, (facts.duration_ns or inf) / 1e9)
        ends_s = min(facts.begin_s + recorded_s, end_s)
        covered_s += max(0.0, ends_s - max(facts.begin_s, until_s))
        until_s = max(until_s, ends_s)
    missing, samples = [], sum(facts.samples for facts in slices)
    if end_s - begin_s - covered_s > allowed_s:
        missing.append(f"{COVER_ONLY} {long_time(covered_s)} of {long_time(end_s - begin_s)}")
    if report.total() != samples:
        missing.append(f"slices with {samples - report.total():,} of {samples:,} samples could not be read")
    return missing


def _selected(selection: Selection) -> str:
    begin_s, end_s = selection.begin_s, selection.end_s
    span = f"{local(begin_s)} {zone(begin_s)} to now" if end_s == inf else local_span(begin_s, end_s)
    parts = [
        selection.service and f"--service {selection.service}",
        span if begin_s else "",
        *(f"--label {key}={value}" for key, value in selection.labels.items()),
        selection.build_id and f"build-id {selection.build_id}",
    ]
    return ", ".join(filter(None, parts)) or "the history is empty"


def contents(history: History, wanted: str | None = None) -> Iterator[str]:
    """Yield a line about the slices of the wanted service; without slices, lines about other services."""
    slices = grouped(history.slices(), lambda facts: facts.service)
    if not slices:
        yield f"{history.directory} has no slice; `sfsample watch` records slices"
    shown = [wanted] if wanted in slices else sorted(slices)[:_MAX_SERVICES]
    for service in filter(None, shown):
        of_service = slices[service]
        last = max(facts.end_s for facts in of_service)
        times = local_span(of_service[0].begin_s, last)
        yield f"there is {service}: {counted(len(of_service), 'slice')}, {times}"
    if wanted not in slices and len(slices) > len(shown):
        yield f"and {len(slices) - len(shown)} more services: sfsample history list shows them"


def compare(
    history: History, compared: Sequence[Selection], *, keep_reports: bool, mode: str = "cpu"
) -> Compared:
    """Compare the slices of two selections; `mode`: see `count`."""
    before, after = chosen = [choose(history, selection) for selection in compared]
    service = Selection(before[0].service, labels=compared[0].labels)
    pairs, what = ordinary_pairs(history.slices(service), before, after)
    spans = [*dict.fromkeys(chain.from_iterable(pairs))]
    ordinary_times = [service._replace(begin_s=span.begin_s, end_s=span.end_s) for span in spans]
    kept: list[Report] = []
    sides: list[Side] = []
    ids = [{facts.id for facts in slices} for slices in chosen]
    missing = ["some slices belong to both times"] if ids[0] & ids[1] else []
    for at, report in enumerate(history.reports([*compared, *ordinary_times])):
        if at < len(chosen):
            lacks = answer(compared[at], chosen[at], report).stats.texts("missing")
            missing += [f"{('before', 'after')[at]}: {text}" for text in lacks]
        sides.append(count(report, _name(chosen[at]) if at < len(chosen) else "", mode=mode))
        kept += [report] if at < len(chosen) and keep_reports else []
    side_of = dict(zip(spans, sides[2:], strict=True))
    gaps = [gap for selection in compared for gap in history.gaps(selection)]
    missing += [f"no slices {local_span(gap.begin_s, gap.end_s)}: {gap.why}" for gap in gaps]
    warnings = (*missing, *_differing([*before, *after]))
    known_pairs = tuple((side_of[old], side_of[new]) for old, new in pairs)
    ordinary = Ordinary(known_pairs, what, warnings, can_be_shorter=min(map(len, chosen)) > 1)
    return Compared(sides[:2], ordinary, kept)


def deploy(history: History, selection: Selection, to_build: str, length_s: float) -> list[Selection]:
    """Return the times before and after the last change to a build-id that begins with `to_build`."""
    slices = choose(history, selection)
    built = [facts for facts in slices if facts.build_id]
    changes = [
        (old, new)
        for old, new in pairwise(built)
        if old.build_id != new.build_id and (new.build_id or "").startswith(to_build)
    ]
    if not changes:
        what = f" to {to_build}" if to_build else ""
        builds = ", ".join(dict.fromkeys(facts.build_id or "" for facts in built)) or "none"
        raise SfsampleError(f"no change of the build-id{what}: {slices[0].service}",
                            f"its builds: {builds}; or compare two times, with --at and --with")  # fmt: skip
    old, new = changes[-1]
    labels = selection.labels
    return [
        Selection(old.service, old.end_s - length_s, old.end_s, labels, old.build_id or ""),
        Selection(new.service, new.begin_s, new.begin_s + length_s, labels, new.build_id or ""),
    ]


def _differing(slices: list[SliceFacts]) -> Iterator[str]:
    """Yield a sentence for each property that should be the same for all slices, but differs."""
    for what, values in (("rate", {f"{facts.rate_hz or 0:g} Hz" for facts in slices}),
                         ("mode", {facts.mode or "unknown" for facts in slices}),
                         ("tier", {facts.tier for facts in slices})):  # fmt: skip
        if len(values) > 1:
            yield f"the slices differ in {what}: {', '.join(sorted(values))}"


def _name(slices: list[SliceFacts]) -> str:
    tiers = {facts.tier for facts in slices} - {"1m"}
    merged = f", merged to {' and '.join(sorted(tiers))}" if tiers else ""
    return f"{slices[0].service} ({counted(len(slices), 'slice')}{merged})"
