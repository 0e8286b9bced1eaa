"""`sfsample history`: lists, shows, exports, compares, checks and tidies what `watch` has kept.

Times are printed in UTC.
"""

import os
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, pairwise
from math import inf

from sfsample.cli.diff import write_difference
from sfsample.cli.output_file import Output
from sfsample.cli.terminal import printable_lines, say
from sfsample.cli.when import history_directory
from sfsample.cli.written import open_result, say_written
from sfsample.core.foreign import utc
from sfsample.errors import SfsampleError
from sfsample.history.facts import Gap, Selection, SliceFacts
from sfsample.history.ordinary import ordinary_pairs
from sfsample.history.store import History
from sfsample.report.caption import amounts, losses
from sfsample.report.difference import Ordinary, Side, count
from sfsample.report.formats import FORMATS, html
from sfsample.report.json_text import json_text
from sfsample.report.naming import with_python_lines, with_python_marks
from sfsample.report.report import CPU, SAMPLES, Report

_MAX_ROWS = 20  # functions in a table, unless verbose
_MAX_SERVICES = 10  # that an error lists
_MAX_VALUE = 60  # characters of a label, in a table
_DIFF_S = 3600.0  # compared without --for
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def run(arguments: Namespace) -> int:
    """Do what was asked; return the exit code."""
    directory = history_directory(arguments.history)
    if not os.path.isdir(directory):
        what = "it is no directory" if os.path.lexists(directory) else "there is no such directory"
        raise SfsampleError(f"no history: {directory}: {what}",
                            "`sfsample watch` keeps one; --history DIR names another")  # fmt: skip
    history = History(directory)
    try:
        code = _ACTIONS[arguments.action](history, arguments)
    finally:
        history.close()
        for problem in history.problems:
            say(f"skipped: {problem}")
    return code


def _selection(history: History, arguments: Namespace) -> Selection:
    """Return what the flags select; the owner of a service may be left out if there is only one."""
    begin_s, end_s = arguments.since or 0.0, inf
    if arguments.at is not None:
        length_s = arguments.length or _DIFF_S
        begin_s = time.time() - length_s if arguments.at == inf else arguments.at
        end_s = begin_s + length_s
    selection = Selection(arguments.service, begin_s, end_s, dict(arguments.label or ()))
    if selection.service is None or history.slices(selection):
        return selection
    there = {facts.service for facts in history.slices(selection._replace(service=None))}
    found = sorted(service for service in there if service.partition("/")[2] == selection.service)
    if len(found) > 1:
        raise SfsampleError(f"several owners have it: {', '.join(found)}", "use --service OWNER/NAME")
    return selection._replace(service=found[0]) if found else selection


def _chosen(history: History, selection: Selection, *, one_service: bool = True) -> list[SliceFacts]:
    """Return the slices, of which there are some, and of one service."""
    slices = history.slices(selection)
    if not slices:
        raise SfsampleError(
            f"no slice is selected: {_selected(selection)}", *_contents(history, selection.service)
        )
    services = sorted({facts.service for facts in slices})
    if one_service and len(services) > 1:
        raise SfsampleError(f"several services are selected: {', '.join(services)}", "use --service NAME")
    return slices


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


def _long(time_s: float) -> str:
    """Return a time in its two largest units: "1 h 5 min"."""
    rest, parts = round(time_s), []
    for size, unit in _UNITS:
        if rest >= size:
            parts.append(f"{rest // size} {unit}")
        rest %= size
    return " ".join(parts[:2]) or "0 s"


def _answer(selection: Selection, slices: list[SliceFacts], report: Report) -> Report:
    """Return a report that says what it has not.  Raises SfsampleError if it has nothing."""
    if not report.total():
        raise SfsampleError(f"no slice can be read: {_slices(len(slices))} of {slices[0].service}",
                            "sfsample history check shows what is wrong")  # fmt: skip
    missing = _missing(selection, slices, report)
    return report._replace(stats=report.stats.having(missing=missing)) if missing else report


def _said_missing(report: Report) -> list[str]:
    return report.stats.texts("missing")


def _selected(selection: Selection) -> str:
    end = "now" if selection.end_s == inf else utc(selection.end_s)
    parts = [
        selection.service and f"--service {selection.service}",
        f"{utc(selection.begin_s)} to {end} UTC" if selection.begin_s else "",
        *(f"--label {key}={value}" for key, value in selection.labels.items()),
        selection.build_id and f"build-id {selection.build_id}",
    ]
    return ", ".join(filter(None, parts)) or "the history is empty"


def _contents(history: History, wanted: str | None = None) -> Iterator[str]:
    """Yield what there is instead: a line for the service that is wanted, else for each of some."""
    slices: dict[str, list[SliceFacts]] = {}
    for facts in history.slices():
        slices.setdefault(facts.service, []).append(facts)
    if not slices:
        yield f"{history.directory} has no slice"
    shown = [wanted] if wanted in slices else sorted(slices)[:_MAX_SERVICES]
    for service in filter(None, shown):
        found = slices[service]
        last = max(facts.end_s for facts in found)
        yield f"there is {service}: {_slices(len(found))}, {utc(found[0].begin_s)} to {utc(last)} UTC"
    if wanted not in slices and len(slices) > len(shown):
        yield f"and {len(slices) - len(shown)} more services: sfsample history list shows them"


# -- actions


def _list(history: History, arguments: Namespace) -> int:
    output, selection = Output(arguments.output), _selection(history, arguments)
    slices, gaps = history.slices(selection), history.gaps(selection)
    if arguments.format == "json":
        document = {"schema": "sfsample.history/1", "slices": [*map(_slice_json, slices)],
                    "gaps": [_gap_json(gap) for gap in gaps]}  # fmt: skip
        output.write(json_text(document))
    else:
        _chosen(history, selection, one_service=False)
        output.write(printable_lines(_table(slices, gaps)))
    return 0


def _slice_json(facts: SliceFacts) -> dict[str, object]:
    known = ("id", "service", "samples", "tier", "pinned", "build_id", "host", "rate_hz", "mode", "ticks",
             "late_ticks", "duration_ns", "recorder")  # fmt: skip
    return {
        "begin": facts.begin_s, "end": facts.end_s, "labels": dict(facts.labels),
        "cpu_s": facts.cpu_charged_ns / 1e9, "coverage": facts.coverage,
    } | {name: getattr(facts, name) for name in known}  # fmt: skip


def _gap_json(gap: Gap) -> dict[str, object]:
    return {"begin": gap.begin_s, "end": gap.end_s, "why": gap.why, "service": gap.service}


def _table(slices: list[SliceFacts], gaps: list[Gap]) -> Iterator[str]:
    """Yield a line for each slice and each gap, in the order of time."""
    rows: list[SliceFacts | Gap] = [*slices, *gaps]
    rows.sort(key=lambda each: (each.begin_s, each.service))
    width = max(len(each.service) for each in rows)
    yield f"{'begin (UTC)':19}  {'seconds':>7}  {'service':{width}}  samples   cpu s  covered  tier"
    for row in rows:
        begin = f"{utc(row.begin_s)}  {row.end_s - row.begin_s:7.0f}  {row.service:{width}}"
        yield f"{begin}  gap: {row.why}" if isinstance(row, Gap) else f"{begin}  {_columns(row)}"


def _columns(facts: SliceFacts) -> str:
    covered = "-" if facts.coverage is None else f"{100 * facts.coverage:.0f} %"
    labels = "".join(f" {key}={_cut(value)}" for key, value in facts.labels.items())
    pinned = " pinned" if facts.pinned else ""
    cpu_s = facts.cpu_charged_ns / 1e9
    return f"{facts.samples:7}  {cpu_s:6.2f}  {covered:>7}  {facts.tier:4}{pinned}{labels}".rstrip()


def _cut(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else f"{value[:_MAX_VALUE]}..."


def _show(history: History, arguments: Namespace) -> int:
    if arguments.format == "html":
        return _export(history, arguments)
    output, selection = Output(arguments.output), _selection(history, arguments)
    slices, gaps = _chosen(history, selection), history.gaps(selection)
    report = _answer(selection, slices, history.report(selection))
    lines = _summary(slices, gaps, report, verbose=arguments.verbose)
    output.write(printable_lines(lines))
    return 0


def _summary(slices: list[SliceFacts], gaps: list[Gap], report: Report, *, verbose: bool) -> Iterator[str]:
    last = max(facts.end_s for facts in slices)
    yield f"{slices[0].service}: {_slices(len(slices))}, {utc(slices[0].begin_s)} to {utc(last)} UTC"
    yield ", ".join(amounts(report))
    builds = [*dict.fromkeys(facts.build_id for facts in slices if facts.build_id)]
    yield from (f"build-id {build}" for build in builds)
    yield from (f"lost: {loss}" for loss in losses(report))
    yield from (f"gap: {utc(gap.begin_s)} to {utc(gap.end_s)} UTC: {gap.why}" for gap in gaps)
    weight, what = (CPU, "CPU time") if report.total(CPU) else (SAMPLES, "samples")
    rows = zip(report.stacks, report.column(weight), strict=True)
    stacks = tuple(stack._replace(weights=(number,)) for stack, number in rows)
    side = count(report._replace(stacks=stacks, weights=(weight,)))
    for title, counts in (("by own time", side.by_self), ("with what they call", side.by_total)):
        yield ""
        yield f"functions {title} (share of {what}):"
        yield from _functions(counts, report.total(weight), verbose=verbose)


def _functions(counts: Counter[str], total: int, *, verbose: bool) -> Iterator[str]:
    shown = counts.most_common(None if verbose else _MAX_ROWS)
    yield from (f"  {100 * number / total:6.2f} %  {name}" for name, number in shown)
    if len(counts) > len(shown):
        yield f"  and {len(counts) - len(shown)} more (-v shows all)"


def _export(history: History, arguments: Namespace) -> int:
    output, selection = Output(arguments.output), _selection(history, arguments)
    chosen = _chosen(history, selection)
    write: Callable[..., bytes] = FORMATS[arguments.format].write
    if arguments.format == "html":
        report, slices = history.time_slices(selection)
        write = partial(html.write, time_slices=slices)
    else:
        report = history.report(selection)
    report = _answer(selection, chosen, report)
    if arguments.lines:
        report = with_python_lines(report)
    if arguments.mark_python:
        report = with_python_marks(report)
    output.write(write(report, threads=arguments.threads))
    for missing in _said_missing(report):
        say(f"warning: {missing}")
    say_written(arguments, output)
    open_result(arguments, output)
    return 0


def _diff(history: History, arguments: Namespace) -> int:
    output, compared = Output(arguments.output), _compared(history, arguments)
    before, after = chosen = [_chosen(history, selection) for selection in compared]
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
            checked = _answer(compared[at], chosen[at], report)
            missing += [f"{('before', 'after')[at]}: {text}" for text in _said_missing(checked)]
        sides.append(count(report, _name(chosen[at]) if at < len(chosen) else ""))
        kept += [report] if at < len(chosen) and arguments.format == "html" else []
    of = dict(zip(spans, sides[2:], strict=True))
    gaps = [gap for selection in compared for gap in history.gaps(selection)]
    missing += [f"no slices {utc(gap.begin_s)} to {utc(gap.end_s)} UTC: {gap.why}" for gap in gaps]
    warnings = (*missing, *_differing([*before, *after]))
    ordinary = Ordinary(tuple((of[one], of[two]) for one, two in pairs), what, warnings)
    return write_difference(arguments, output, sides[:2], kept, ordinary)


def _compared(history: History, arguments: Namespace) -> tuple[Selection, Selection]:
    """Return which slices are compared."""
    length_s = arguments.length or _DIFF_S
    if arguments.deploy is not None:
        slices = _chosen(history, _selection(history, arguments))
        return _deploy(slices, arguments, length_s)
    before = _selection(history, arguments)
    if isinstance(arguments.other, str):
        build = before._replace(begin_s=0.0, end_s=inf, build_id=arguments.other)
        begin_s = _chosen(history, build)[0].begin_s
        return before, build._replace(begin_s=begin_s, end_s=begin_s + length_s)
    return before, _selection(history, Namespace(**{**vars(arguments), "at": arguments.other}))


def _deploy(slices: list[SliceFacts], arguments: Namespace, length_s: float) -> tuple[Selection, Selection]:
    """Return what is before and after the last change of the build-id, or the last one to a build-id."""
    built = [each for each in slices if each.build_id]
    changes = [
        (old, new)
        for old, new in pairwise(built)
        if old.build_id != new.build_id and (new.build_id or "").startswith(arguments.deploy)
    ]
    if not changes:
        what = f" to {arguments.deploy}" if arguments.deploy else ""
        builds = ", ".join(dict.fromkeys(each.build_id or "" for each in built)) or "none"
        raise SfsampleError(f"no change of the build-id{what}: {slices[0].service}",
                            f"its builds: {builds}; or compare two times, with --at and --with")  # fmt: skip
    old, new = changes[-1]
    say(f"deployed {utc(new.begin_s)} UTC: build-id {old.build_id} -> {new.build_id}")
    labels = dict(arguments.label or ())
    return (
        Selection(old.service, old.end_s - length_s, old.end_s, labels, old.build_id or ""),
        Selection(new.service, new.begin_s, new.begin_s + length_s, labels, new.build_id or ""),
    )


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
    return f"{slices[0].service} ({_slices(len(slices))}{merged})"


def _prune(history: History, arguments: Namespace) -> int:
    history.tidy(time.time(), arguments.keep_for, arguments.keep_bytes)
    say(*_contents(history))
    return 0


def _check(history: History, arguments: Namespace) -> int:
    findings = list(history.findings())
    number, count = len(findings), _slices(len(history.slices()))
    outcome = f"{number} problem{'' if number == 1 else 's'}" if number else "all of it is whole"
    text = [*findings, f"{history.directory}: {count}: {outcome}"]
    Output(arguments.output).write(printable_lines(text))
    history.problems.clear()  # they are among the findings
    return 1 if findings else 0


def _push(history: History, arguments: Namespace) -> int:
    from sfsample.cli.push.command import push  # http.client takes long to import

    if arguments.service is not None:
        arguments.service = _chosen(history, _selection(history, arguments))[0].service
    return push(history, arguments)


_ACTIONS: dict[str, Callable[[History, Namespace], int]] = {
    "list": _list, "show": _show, "export": _export, "diff": _diff, "prune": _prune, "check": _check,
    "push": _push,
}  # fmt: skip


def _slices(number: int) -> str:
    return f"{number:,} slice{'' if number == 1 else 's'}"
