"""A difference as text, as JSON and as a page.

Law: the text says first on what base it compares, then what really changed, and counts what is noise.  The
page is the flame graph's, with two weights and colours for the change.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any

from sfsample.report.about import losses
from sfsample.report.builder import ReportBuilder
from sfsample.report.difference import NOISE, Change, Difference, label
from sfsample.report.report import Report, ReportFrame, Thread
from sfsample.report.writers.html import page
from sfsample.report.writers.page_data import page_data

_SHOWN = 20  # functions in a table


def difference_json(found: Difference) -> dict[str, Any]:
    """Return the object that `diff --json` prints."""
    return {
        "schema": "sfsample.diff/1",
        "shares_of": "cpu" if found.per_time else "samples",
        "exposures": list(found.exposures),
        "all": _change_json(found.whole),
        "self": [_change_json(change) for change in found.own],
        "total": [_change_json(change) for change in found.total],
    }


def _change_json(change: Change) -> dict[str, Any]:
    return change._asdict() | {
        "high": change.high if isfinite(change.high) else None,
        "change": change.change,
    }


def difference_text(found: Difference, *, verbose: bool = False) -> Iterator[str]:
    """Yield lines, without newlines."""
    base = "of one CPU's time" if found.per_time else "of all samples (a duration or rate is not known)"
    yield f"shares are {base}; ratios with their 95 % interval"
    yield _row(found.whole)
    for title, changes in (("by own time", found.own), ("with what they call", found.total)):
        yield ""
        yield f"functions {title}:"
        real = [change for change in changes if change.verdict != NOISE]
        shown = real if verbose else real[:_SHOWN]
        yield from map(_row, shown)
        if len(real) > len(shown):
            yield f"  and {len(real) - len(shown)} more (-v shows all)"
        noise = len(changes) - len(real)
        what = f"{'other ' if real else ''}function{'' if noise == 1 else 's'}"
        yield f"  {noise} {what}: no more than noise"


def _row(change: Change) -> str:
    ratio = f"x{_times(change.low)}..{_times(change.high)}"
    shares = f"{_percent(change.share_before)} -> {_percent(change.share_after)}"
    return (
        f"  {change.verdict:6} {shares:>22}  {ratio:14} {change.before:>7} -> {change.after:<7} {change.name}"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 100 else f"{ratio:.0f}" if isfinite(ratio) else "new"


def difference_html(before: Report, after: Report, found: Difference) -> bytes:
    """Return the page: one tree of both, as wide as `after`, coloured by the change."""
    data = page_data(_side_by_side(before, after), threads=False)
    lost = [*(f"before: {text}" for text in losses(before)), *(f"after: {text}" for text in losses(after))]
    verdicts = {change.name: change for change in found.total}
    texts: list[str] = data["frames"]["text"]
    return page(
        data
        | {
            "diff": True,
            "about": f"{before.total():,} samples before, {after.total():,} after",
            "losses": lost,
            "scales": [100 / exposure if exposure else 0 for exposure in reversed(found.exposures)],
            "unit": "% of one CPU" if found.per_time else "% of all samples",
            "frames": data["frames"]
            | {
                "noise": [text not in verdicts or verdicts[text].verdict == NOISE for text in texts],
                "change": [_sentence(verdicts[text]) if text in verdicts else "" for text in texts],
            },
        }
    )


def _sentence(change: Change) -> str:
    what = "no more than noise" if change.verdict == NOISE else change.verdict
    return f"{what}: x{_times(change.low)} to x{_times(change.high)} (95 %)"


def _side_by_side(before: Report, after: Report) -> Report:
    """Return one report with two weights; places are what they are compared by, threads go by name."""
    builder = ReportBuilder(("after", "before"))
    for report, place in ((before, lambda n: (0, n)), (after, lambda n: (n, 0))):
        frames = [ReportFrame(label(frame), frame.function, module=frame.module) for frame in report.frames]
        for stack in report.stacks:
            thread = report.threads[stack.thread]
            rows = [frames[at] for at in stack.frames]
            builder.add(Thread(thread.process, thread.name), rows, stack.stop_reason, place(stack.weights[0]))
    return builder.finish()
