"""Writes a difference as text, as JSON, and as an html page: a flame graph with two weights."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from sfsample.core.local_time import local, zone
from sfsample.core.quantities import counted, listed
from sfsample.recording.stats import MIN_COVERAGE
from sfsample.report.caption import duration, losses
from sfsample.report.difference import NOISE, Change, Difference, Side, comparison_name
from sfsample.report.formats.html import page, page_data
from sfsample.report.json_text import json_text
from sfsample.report.noise import ENOUGH_PAIRS, FEW_FACTOR, LEAST_PAIRS
from sfsample.report.report import CPU, SAMPLES, Report, ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import NamedFrame

_NOTABLE_CPU_NS = 10**9  # CPU time; less time has few samples, so a low coverage means nothing
_SIDES = ("before", "after")
_SIDE_FACTS = ("name", "files", "samples", "duration_ns", "rate_hz", "host", "started_ns", "mode", "cpu_ns")
_MAX_ROWS = 20  # real changes in a table, unless verbose
_LARGEST = 10  # largest differences, which a table always shows, whatever the verdict
_MAX_NAMES = 3  # names of processes or functions in a sentence or row
_CHANGING_LOAD = 1.05  # usual ratio of loads; if it is higher, the text advises to compare shares


def _input_lines(difference: Difference) -> list[str]:
    return [f"{text}: {_input_text(side)}" for text, side in zip(_SIDES, difference.sides, strict=True)]


def _input_text(side: Side) -> str:
    wall = "" if side.duration_ns is None else duration(side.duration_ns)
    cpu = "" if side.cpu_ns is None else f"{duration(side.cpu_ns)} of CPU time"
    rate = "" if side.rate_hz is None else f"{side.rate_hz:g} Hz"
    started_s = (side.started_ns or 0) // 10**9
    started = f"{local(started_s)} {zone(started_s)}" if started_s else ""
    name = side.name if side.files == 1 else f"{side.name} ({side.files} files)"
    time = " in ".join(filter(None, (cpu, wall)))
    parts = [name, time, rate, counted(side.samples), side.host and f"host {side.host}", started]
    facts = {"duration": wall, "rate": rate, "host": side.host, "time": started}
    unknown = ", ".join(what for what, value in facts.items() if not value)
    unequal = "" if side.files == 1 else ", or not equal in all files"
    return ", ".join(filter(None, parts)) + (f" (not known{unequal}: {unknown})" if unknown else "")


def compared(difference: Difference) -> str:
    """Say whether shares of time or shares of samples are compared, with the reason."""
    what = "CPU time" if difference.by_cpu else "samples"
    if difference.per_time:
        is_wall = not difference.by_cpu and "wall" in {side.mode for side in difference.sides}
        whole = "thread's" if is_wall else "CPU's"
        return f"{what}, in shares of one {whole} time"
    if difference.relative:
        return f"shares of all {what} (--relative)"
    untimed = [text for text, side in zip(_SIDES, difference.sides, strict=True) if not side.ticks]
    return f"shares of all samples, as the duration or rate of {' and '.join(untimed)} is not known"


def warnings(difference: Difference) -> list[str]:
    """Return a sentence for each reason to doubt the answer."""
    before, after = difference.sides
    found = [*_too_few_pairs(difference)]
    for text, side in zip(_SIDES, difference.sides, strict=True):
        share = side.coverage if difference.by_cpu and (side.cpu_ns or 0) > _NOTABLE_CPU_NS else None
        if share is not None and share < MIN_COVERAGE:
            found.append(f"{text}: samples stand for {100 * share:.0f} % of the CPU time")
    if before.mode and after.mode and before.mode != after.mode and not difference.by_cpu:
        found.append(f"before has --mode {before.mode} and after --mode {after.mode}: "
                     "only wall has the threads that sleep")  # fmt: skip
    if before.processes and after.processes and not {*before.processes} & {*after.processes}:
        old, new = listed(before.processes, _MAX_NAMES), listed(after.processes, _MAX_NAMES)
        found.append(f"the processes differ: {old} before, {new} after")
    return found


def _too_few_pairs(difference: Difference) -> Iterator[str]:
    """Yield the reason why there is no verdict, and the other warnings of a history."""
    ordinary = difference.ordinary
    if ordinary is None:
        return
    if not ordinary.enough:
        number = counted(len(ordinary.pairs), "pair") if ordinary.pairs else "no pairs"
        found = f"{number} of {ordinary.what or 'ordinary times'}"
        advice = "; times that are shorter (--for) or closer together have more pairs"
        yield (f"no verdict: the history has {found}, and {LEAST_PAIRS} are needed to know "
               f"how ordinary times differ{advice * ordinary.can_be_shorter}")  # fmt: skip
    yield from ordinary.warnings


def _noise_lines(difference: Difference) -> Iterator[str]:
    """Yield the sentences about ordinary differences, which only a history has."""
    ordinary, load = difference.ordinary, difference.overall.ordinary or 1.0
    if ordinary is not None and ordinary.enough:
        few = len(ordinary.pairs) < ENOUGH_PAIRS
        more = f"{FEW_FACTOR} times as much as" if few else "more than"
        yield (f"ordinary: {counted(len(ordinary.pairs), 'pair')} of {ordinary.what}; a function has changed "
               f"if it differs by {more} in these pairs")  # fmt: skip
        if load > _CHANGING_LOAD and not difference.relative:
            yield f"ordinary: the load differs by x{load:.2f}; --relative leaves the load out"


def difference_json(difference: Difference) -> bytes:
    """Return the JSON document of `diff --json`."""
    ordinary = difference.ordinary
    document = {
        "schema": "sfsample.diff/1",
        "shares_of": "cpu" if difference.per_time else "samples",
        "compared": "cpu_time" if difference.by_cpu else "samples",
        "relative": difference.relative,
        "inputs": [{key: getattr(side, key) for key in _SIDE_FACTS} | {"processes": list(side.processes)}
                   for side in difference.sides],
        "warnings": warnings(difference),
        "ordinary": ordinary and {"pairs": len(ordinary.pairs), "needed": LEAST_PAIRS, "of": ordinary.what},
        "exposures": list(difference.exposures),
        "all": _change_json(difference.overall),
        "self": [*map(_change_json, difference.by_self)],
        "total": [*map(_change_json, difference.by_total)],
    }  # fmt: skip
    return json_text(document, indent=1).encode()


def _change_json(change: Change) -> dict[str, Any]:
    high = change.high if isfinite(change.high) else None
    samples = {"before": round(change.before), "after": round(change.after)}
    return change._asdict() | samples | {"high": high, "change": change.change}


def difference_text(difference: Difference, *, verbose: bool = False) -> Iterator[str]:
    """Yield lines, without newlines."""
    yield from _input_lines(difference)
    yield f"compared: {compared(difference)}; ratios with their 95 % interval"
    yield from _noise_lines(difference)
    with_ordinary = difference.ordinary is not None and difference.ordinary.enough
    yield ""
    yield f"  {'verdict':7}  {'before -> after':>22}  {'ratio':14}{'  ordinary' * with_ordinary}  function"
    yield _row(difference.overall, "all", with_ordinary=with_ordinary)
    for title, changes in (("own time", difference.by_self), ("time with callees", difference.by_total)):
        yield ""
        yield f"functions by {title}:"
        yield from _table(changes, verbose=verbose, with_ordinary=with_ordinary)


def _table(changes: Sequence[Change], *, verbose: bool, with_ordinary: bool) -> Iterator[str]:
    """Yield a row for each real change and each of the largest differences; count the other functions."""
    rows: dict[Change, list[str]] = {}
    for change in changes:
        rows.setdefault(change._replace(name=""), []).append(change.name)
    largest = {*sorted(rows, key=lambda change: -abs(change.change))[:_LARGEST]}
    real = [change for change in rows if change.verdict != NOISE]
    shown = rows if verbose else {*real[:_MAX_ROWS], *largest}
    for change, names in rows.items():
        if change in shown:
            yield _row(change, listed(names, _MAX_NAMES), with_ordinary=with_ordinary)
    rest = Counter(change.verdict for change, names in rows.items() for _ in names if change not in shown)
    if rest:
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in rest.items())
        yield f"  and {counted(rest.total(), 'function')}: {verdicts} (-v shows all)"


def _row(change: Change, name: str, *, with_ordinary: bool) -> str:
    shares = f"{100 * change.share_before:.2f} % -> {100 * change.share_after:.2f} %"
    most = change.ordinary_most
    ordinary = "" if not with_ordinary else f"  {'-' if most is None else f'x{_ratio(most)}':8}"
    return f"  {change.verdict:7}  {shares:>22}  {_interval(change):14}{ordinary}  {name}"


def _interval(change: Change) -> str:
    """Return the 95 % interval of the ratio: "x0.80..1.30", "new"."""
    if not change.before or not change.after:
        return "-" if not change.before + change.after else "gone" if change.before else "new"
    return f"x{_ratio(change.low)}..{_ratio(change.high)}"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}" if ratio < 1000 else ">1000"


def difference_html(before: Report, after: Report, difference: Difference) -> bytes:
    """Return the page: one tree of both reports, with the widths of `after`; colours show the change."""
    reports = zip(_SIDES, (before, after), strict=True)
    lost = [f"{text}: {what}" for text, report in reports for what in losses(report)]
    doubts = [text for text in warnings(difference) if not any(loss.startswith(text) for loss in lost)]
    both = _side_by_side(before, after, by_cpu=difference.by_cpu)
    shares = difference.overall.share_after, difference.overall.share_before
    del before, after, reports  # frees memory that the page needs
    data = page_data(both, threads=False)
    by_name = {change.name: change for change in difference.by_total}
    changes = [by_name.get(text) for text in data["frames"]["text"]]
    data["frames"]["noise"] = [change is None or change.verdict == NOISE for change in changes]
    data["frames"]["change"] = [*map(_verdict_text, changes)]
    extent = [*_input_lines(difference), f"compared: {compared(difference)}", *_noise_lines(difference)]
    gone = [each.name for each in difference.by_total if each.verdict != NOISE and not each.after]
    if gone:
        extent.append(f'vanished, and shown with Width "before": {listed(gone, _MAX_NAMES)}')
    data |= {
        "diff": True,
        "extent": "; ".join(extent),
        "losses": [*doubts, *lost],
        "scales": [100 * share / (both.total(weight) or 1)
                   for share, weight in zip(shares, both.weights, strict=True)],
        # weight that is the width of boxes when the page opens: 0 after, 1 before
        "widest": int(shares[0] < shares[1] / 10),
        "unit": "% of one CPU" if difference.per_time else "% of all samples",
    }  # fmt: skip
    return page(data)


def _verdict_text(change: Change | None) -> str:
    if change is None:
        return ""
    verdict = "no more than noise" if change.verdict == NOISE else change.verdict
    return f"{verdict}: {_interval(change)} (95 %)"


def _side_by_side(before: Report, after: Report, *, by_cpu: bool) -> Report:
    """Merge both reports; a frame is only a name, so that a function has one box."""
    builder = ReportBuilder(("after", "before"))
    rows: dict[str, NamedFrame] = {}
    for report, weights in ((after, lambda n: (n, 0)), (before, lambda n: (0, n))):
        number = []
        for frame in report.frames:
            name = comparison_name(frame)
            bare = NamedFrame(name, frame.function, module=frame.module, file=frame.file, kind=frame.kind)
            number.append(builder.number(rows.setdefault(name, bare)))
        weight = CPU if by_cpu and report.stats.text("mode") == "wall" else SAMPLES
        for stack, amount in zip(report.stacks, report.column(weight), strict=True):
            process, name, *_ = report.threads[stack.thread]  # without ids, which differ between recordings
            frames = [number[at] for at in stack.frames]
            builder.add_row(ReportThread(process, name), frames, stack.stop_reason, weights(amount))
    return builder.finish()
