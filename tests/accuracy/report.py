"""The table in Markdown for docs/accuracy.md, and the kinds of differences, most frequent first."""

from collections import Counter
from collections.abc import Iterable

from tests.accuracy.peers import NAMES
from tests.accuracy.row_counts import RowCounts

_SIGNS = {"identical": "=", "longer": "+", "shorter": "−", "different": "≠"}  # noqa: RUF001 - a minus
_HEADINGS = ["program", "stacks", "frames", *NAMES, "both", "either", "alone", "whole", "callers by"]


def table(rows: list[RowCounts]) -> str:
    """Return a line for each row, and the sum."""
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *map(_line, rows)]
    if len(rows) > 1:
        lines.append(_line(total(rows)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def total(rows: Iterable[RowCounts]) -> RowCounts:
    """Return the sum of all rows."""
    result = RowCounts("all")
    for row in rows:
        for name in ("stops", "stacks", "both", "either", "alone"):
            setattr(result, name, getattr(result, name) + getattr(row, name))
        for name in ("frames", "ends", "captures", "partings", "lost"):
            getattr(result, name).update(getattr(row, name))
        for peer in NAMES:
            result.verdicts[peer].update(row.verdicts[peer])
    return result


def _line(row: RowCounts) -> list[str]:
    verdicts = [" ".join(f"{sign}{row.verdicts[peer][word]}" for word, sign in _SIGNS.items()
                         if row.verdicts[peer][word]) for peer in NAMES]  # fmt: skip
    callers = Counter({found: count for found, count in row.frames.items() if found != "context"})
    by = ", ".join(f"{found} {share(count, callers.total())}" for found, count in callers.most_common())
    both, either, whole = (share(part, row.stacks) for part in (row.both, row.either, row.ends["outermost"]))
    counts = [str(row.stacks), str(row.frames.total())]
    return [row.row, *counts, *verdicts, both, either, str(row.alone), whole, by]


def share(part: int, whole: int) -> str:
    """Return a percentage, never rounded up to 100 or down to 0."""
    if not whole or part in (0, whole):
        return "100 %" if whole and part else "0 %"
    return f"{min(max(100 * part / whole, 0.01), 99.99):.2f} %"


def partings(rows: Iterable[RowCounts], most: int) -> str:
    """Return a line for each kind of difference between two stacks, at most `most`."""
    counted = total(rows).partings.most_common(most)
    return "\n".join(
        f"{count:6} {p.row}: {p.verdict.value} than {p.peer} after {p.last_common}: "
        f"ours {p.own_next}; theirs {p.peer_next}"
        for p, count in counted
    )


def lost(rows: Iterable[RowCounts]) -> str:
    """Return a line for each reason why stacks or stops could not be compared."""
    return "\n".join(f"{count:6} {row.row}: {why}" for row in rows for why, count in row.lost.items())
