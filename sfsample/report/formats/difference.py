"""Writes a difference as text, as JSON, and as an html page: a flame graph with two weights."""

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any

from sfsample.core.foreign import utc
from sfsample.core.quantities import counted
from sfsample.report.caption import listed, losses
from sfsample.report.difference import NOISE, UNKNOWN, Change, Difference, Side, comparison_name, sees_growth
from sfsample.report.formats.html import page, page_data
from sfsample.report.json_text import json_text
from sfsample.report.noise import LEAST_PAIRS
from sfsample.report.report import Report, ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import NamedFrame

_SIDES = ("before", "after")
_MAX_ROWS = 20  # functions in a table, unless verbose
_MAX_NAMES = 3  # names of processes or functions in a sentence or row
_CHANGING_LOAD = 1.05  # usual ratio of loads; if it is higher, the text advises to compare shares
_FUNCTION_SHARE = 0.1  # share of a large function: enough samples must show that such a function doubles


# -- what was compared, in words


def _input_lines(difference: Difference) -> list[str]:
    return [f"{text}: {_input_text(side)}" for text, side in zip(_SIDES, difference.sides, strict=True)]


def _input_text(side: Side) -> str:
    seconds = "" if side.duration_ns is None else f"{side.duration_ns / 1e9:.1f} s"
    rate = "" if side.rate_hz is None else f"{side.rate_hz:g} Hz"
    started = utc(side.started_ns // 10**9, "%Y-%m-%d %H:%M UTC") if side.started_ns else ""
    name = side.name if side.files == 1 else f"{side.name} ({side.files} files)"
    parts = [name, " at ".join(filter(None, (seconds, rate))), counted(side.samples),
             side.host and f"host {side.host}", started]  # fmt: skip
    facts = {"duration": seconds, "rate": rate, "host": side.host, "time": started}
    unknown = ", ".join(what for what, value in facts.items() if not value)
    return ", ".join(filter(None, parts)) + (
        f" (not known{'' if side.files == 1 else ' or not one value'}: {unknown})" if unknown else ""
    )


def compared(difference: Difference) -> str:
    """Return the words that say what a share is a part of, and why."""
    if difference.per_time:
        whole = "thread's" if "wall" in {side.mode for side in difference.sides} else "CPU's"
        return f"rates, in shares of one {whole} time"
    if difference.relative:
        return "shares of all samples (--relative)"
    untimed = [text for text, side in zip(_SIDES, difference.sides, strict=True) if not side.ticks]
    return f"shares of all samples, as the duration or rate of {' and '.join(untimed)} is not known"


def warnings(difference: Difference) -> list[str]:
    """Return a sentence for each reason to doubt the answer."""
    before, after = difference.sides
    found = list(filter(None, [_too_few(difference), *_too_few_pairs(difference)]))
    if before.mode and after.mode and before.mode != after.mode:
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
        yield (f"no verdict: the history has {found}, and {LEAST_PAIRS} are needed to know "
               "how ordinary times differ; with shorter times (--for) there are more pairs")  # fmt: skip
    yield from ordinary.warnings


def _noise_lines(difference: Difference) -> Iterator[str]:
    """Yield the sentences about ordinary differences, which only a history has."""
    ordinary, load = difference.ordinary, difference.overall.ordinary or 1.0
    if ordinary is not None and ordinary.enough:
        yield (f"ordinary: {len(ordinary.pairs)} pairs of {ordinary.what}; a function has changed if it "
               "differs by more than in these pairs")  # fmt: skip
        if load > _CHANGING_LOAD and not difference.relative:
            yield f"ordinary: the load differs by x{load:.2f}; --relative leaves the load out"
    elif ordinary is not None:
        yield "ordinary: not known; a function is unknown if it differs by more than chance explains"


def _too_few(difference: Difference) -> str:
    """Return a sentence if there are too few samples to see a large function grow; "": enough samples."""
    share = _FUNCTION_SHARE * max(difference.overall.share_before, difference.overall.share_after)
    sides = zip(_SIDES, difference.sides, difference.exposures, strict=True)
    few = [f"{text} has {counted(side.samples)}" for text, side, exposure in sides
           if not sees_growth(2.0, share, exposure, len(difference.by_self))]  # fmt: skip
    lost = "too few to notice that a function of 10 % doubles; record longer"
    return f"{' and '.join(few)}: {lost}" if few else ""


# -- JSON


def difference_json(difference: Difference) -> bytes:
    """Return the JSON document of `diff --json`."""
    ordinary = difference.ordinary
    document = {
        "schema": "sfsample.diff/1",
        "shares_of": "cpu" if difference.per_time else "samples",
        "relative": difference.relative,
        "inputs": [_side_json(side) for side in difference.sides],
        "warnings": warnings(difference),
        "ordinary": ordinary and {"pairs": len(ordinary.pairs), "needed": LEAST_PAIRS, "of": ordinary.what},
        "exposures": list(difference.exposures),
        "all": _change_json(difference.overall),
        "self": [*map(_change_json, difference.by_self)],
        "total": [*map(_change_json, difference.by_total)],
    }
    return json_text(document, indent=1).encode()


def _side_json(side: Side) -> dict[str, Any]:
    known = ("name", "files", "samples", "duration_ns", "rate_hz", "host", "started_ns", "mode")
    return {key: getattr(side, key) for key in known} | {"processes": list(side.processes)}


def _change_json(change: Change) -> dict[str, Any]:
    high = change.high if isfinite(change.high) else None
    return change._asdict() | {"high": high, "change": change.change}


# -- text


def difference_text(difference: Difference, *, verbose: bool = False) -> Iterator[str]:
    """Yield lines, without newlines."""
    yield from _input_lines(difference)
    yield f"compared: {compared(difference)}; ratios with their 95 % interval"
    yield from _noise_lines(difference)
    yield _row(difference.overall, "all")
    for title, changes in (("by own time", difference.by_self), ("with what they call", difference.by_total)):
        yield ""
        yield f"functions {title}:"
        yield from _table(changes, verbose=verbose)


def _table(changes: Sequence[Change], *, verbose: bool) -> Iterator[str]:
    """Yield the rows of real changes (equal changes in one row), and the number of unchanged functions."""
    rows: dict[Change, list[str]] = {}
    for change in changes:
        if change.verdict != NOISE:
            rows.setdefault(change._replace(name=""), []).append(change.name)
    shown = list(rows.items())[: None if verbose else _MAX_ROWS]
    for change, names in shown:
        yield _row(change, listed(names, _MAX_NAMES))
    if len(rows) > len(shown):
        yield f"  and {len(rows) - len(shown)} more (-v shows all)"
    noise = len(changes) - sum(map(len, rows.values()))
    yield f"  {noise} {'other ' if rows else ''}function{'' if noise == 1 else 's'}: no more than noise"


def _row(change: Change, name: str) -> str:
    ratio = f"x{_ratio(change.low)}..{_ratio(change.high)}"
    shares = f"{_percent(change.share_before)} -> {_percent(change.share_after)}"
    samples = f"{change.before:>7} -> {change.after:<7}"
    return f"  {change.verdict:{6 + (change.verdict == UNKNOWN)}} {shares:>22}  {ratio:14} {samples} {name}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}" if isfinite(ratio) else "new"


# -- html


def difference_html(before: Report, after: Report, difference: Difference) -> bytes:
    """Return the page: one tree of both reports; widths are those of `after`, colours show the change."""
    reports = zip(_SIDES, (before, after), strict=True)
    lost = [f"{text}: {what}" for text, report in reports for what in losses(report)]
    both = _side_by_side(before, after)
    del before, after, reports  # frees memory, as the page needs as much
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
        "losses": [*warnings(difference), *lost],
        "scales": [100 / exposure if exposure else 0 for exposure in reversed(difference.exposures)],
        "unit": "% of one CPU" if difference.per_time else "% of all samples",
    }
    return page(data)


def _verdict_text(change: Change | None) -> str:
    if change is None:
        return ""
    verdict = "no more than noise" if change.verdict == NOISE else change.verdict
    return f"{verdict}: x{_ratio(change.low)} to x{_ratio(change.high)} (95 %)"


def _side_by_side(before: Report, after: Report) -> Report:
    """Return one report of both, frames only names, so a function has one box; modules are of `after`."""
    builder = ReportBuilder(("after", "before"))
    rows: dict[str, NamedFrame] = {}
    for report, weights in ((after, lambda n: (n, 0)), (before, lambda n: (0, n))):
        names = map(comparison_name, report.frames)
        number = [
            builder.number(rows.setdefault(name, _name_alone(name, frame)))
            for name, frame in zip(names, report.frames, strict=True)
        ]
        for stack in report.stacks:
            process, name, *_ = report.threads[stack.thread]  # without ids, which differ between recordings
            frames = [number[at] for at in stack.frames]
            builder.add_row(ReportThread(process, name), frames, stack.stop_reason, weights(stack.weights[0]))
    return builder.finish()


def _name_alone(name: str, frame: NamedFrame) -> NamedFrame:
    return NamedFrame(name, frame.function, module=frame.module, file=frame.file, kind=frame.kind)
