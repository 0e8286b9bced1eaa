"""Writes a difference as text, as JSON and as an html page.

The text first states what the shares are shares of, then lists the real changes and counts the noise.  The
page is the one of the flame graph, with two weights, and with colours for the change.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from sfsample.report.caption import losses
from sfsample.report.difference import NOISE, Change, Difference, comparison_name
from sfsample.report.formats.html import page, page_data
from sfsample.report.report import Report, ReportBuilder, ReportFrame, ReportThread

_MAX_ROWS = 20  # functions in a table, unless verbose


def difference_json(difference: Difference) -> dict[str, Any]:
    """Return the object that `diff --json` prints."""
    return {
        "schema": "sfsample.diff/1",
        "shares_of": "cpu" if difference.per_time else "samples",
        "exposures": list(difference.exposures),
        "all": _change_json(difference.overall),
        "self": [_change_json(change) for change in difference.by_self],
        "total": [_change_json(change) for change in difference.by_total],
    }


def _change_json(change: Change) -> dict[str, Any]:
    high = change.high if isfinite(change.high) else None
    return change._asdict() | {"high": high, "change": change.change}


def difference_text(difference: Difference, *, verbose: bool = False) -> Iterator[str]:
    """Yield lines, without newlines."""
    base = "of one CPU's time" if difference.per_time else "of all samples (a duration or rate is not known)"
    yield f"shares are {base}; ratios with their 95 % interval"
    yield _row(difference.overall)
    for title, changes in (("by own time", difference.by_self), ("with what they call", difference.by_total)):
        yield ""
        yield f"functions {title}:"
        real = [change for change in changes if change.verdict != NOISE]
        shown = real if verbose else real[:_MAX_ROWS]
        yield from map(_row, shown)
        if len(real) > len(shown):
            yield f"  and {len(real) - len(shown)} more (-v shows all)"
        noise = len(changes) - len(real)
        noun = f"{'other ' if real else ''}function{'' if noise == 1 else 's'}"
        yield f"  {noise} {noun}: no more than noise"


def _row(change: Change) -> str:
    ratio = f"x{_ratio(change.low)}..{_ratio(change.high)}"
    shares = f"{_percent(change.share_before)} -> {_percent(change.share_after)}"
    samples = f"{change.before:>7} -> {change.after:<7}"
    return f"  {change.verdict:6} {shares:>22}  {ratio:14} {samples} {change.name}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}" if isfinite(ratio) else "new"


def difference_html(before: Report, after: Report, difference: Difference) -> bytes:
    """Return the page: one tree of both reports, as wide as `after`, coloured by the change."""
    data = page_data(_side_by_side(before, after), threads=False)
    by_name = {change.name: change for change in difference.by_total}
    changes = [by_name.get(text) for text in data["frames"]["text"]]
    data["frames"]["noise"] = [change is None or change.verdict == NOISE for change in changes]
    data["frames"]["change"] = [_verdict_text(change) if change else "" for change in changes]
    sides = (("before", before), ("after", after))
    data |= {
        "diff": True,
        "extent": f"{before.total():,} samples before, {after.total():,} after",
        "losses": [f"{side}: {text}" for side, report in sides for text in losses(report)],
        "scales": [100 / exposure if exposure else 0 for exposure in reversed(difference.exposures)],
        "unit": "% of one CPU" if difference.per_time else "% of all samples",
    }
    return page(data)


def _verdict_text(change: Change) -> str:
    verdict = "no more than noise" if change.verdict == NOISE else change.verdict
    return f"{verdict}: x{_ratio(change.low)} to x{_ratio(change.high)} (95 %)"


def _side_by_side(before: Report, after: Report) -> Report:
    """Return one report with the weights "after" and "before"; frames have the names they are compared by."""
    builder = ReportBuilder(("after", "before"))
    for report, weights in ((before, lambda n: (0, n)), (after, lambda n: (n, 0))):
        frames = [
            ReportFrame(comparison_name(frame), frame.function, module=frame.module)
            for frame in report.frames
        ]
        for stack in report.stacks:
            process, name, *_ = report.threads[stack.thread]  # not the ids: those differ between recordings
            rows = [frames[at] for at in stack.frames]
            builder.add(ReportThread(process, name), rows, stack.stop_reason, weights(stack.weights[0]))
    return builder.finish()
