"""The table, and below it every way in which stacks parted, most frequent first.

Law: Markdown that can be pasted into docs/accuracy.md as it is; nothing is left out of it but by `most`.
"""

from collections import Counter
from collections.abc import Iterable

from tests.accuracy.peers import NAMES
from tests.accuracy.tally import Recorder

_SIGNS = {"identical": "=", "longer": "+", "shorter": "−", "different": "≠"}  # noqa: RUF001 - a minus
_HEADINGS = ["program", "stacks", "frames", *NAMES, "both", "either", "alone", "whole", "callers by"]


def table(tallies: list[Recorder]) -> str:
    """One line for each row, and the sum."""
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *map(_line, tallies)]
    if len(tallies) > 1:
        lines.append(_line(total(tallies)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def total(tallies: Iterable[Recorder]) -> Recorder:
    """Return the sum of all rows."""
    result = Recorder("all")
    for tally in tallies:
        for name in ("stops", "stacks", "both", "either", "alone"):
            setattr(result, name, getattr(result, name) + getattr(tally, name))
        for name in ("frames", "ends", "captures", "partings", "lost"):
            getattr(result, name).update(getattr(tally, name))
        for peer in NAMES:
            result.verdicts[peer].update(tally.verdicts[peer])
    return result


def _line(tally: Recorder) -> list[str]:
    verdicts = [" ".join(f"{sign}{tally.verdicts[peer][word]}" for word, sign in _SIGNS.items()
                         if tally.verdicts[peer][word]) for peer in NAMES]  # fmt: skip
    callers = Counter({found: count for found, count in tally.frames.items() if found != "context"})
    by = ", ".join(f"{found} {share(count, callers.total())}" for found, count in callers.most_common())
    both, either, whole = (
        share(part, tally.stacks) for part in (tally.both, tally.either, tally.ends["outermost"])
    )
    counts = [str(tally.stacks), str(tally.frames.total())]
    return [tally.row, *counts, *verdicts, both, either, str(tally.alone), whole, by]


def share(part: int, whole: int) -> str:
    """Percent, never rounded up to 100 or down to 0."""
    if not whole or part in (0, whole):
        return "100 %" if whole and part else "0 %"
    return f"{min(max(100 * part / whole, 0.01), 99.99):.2f} %"


def partings(tallies: Iterable[Recorder], most: int) -> str:
    """Every way in which stacks parted."""
    counted = total(tallies).partings.most_common(most)
    return "\n".join(
        f"{count:6} {p.row}: {p.verdict.value} than {p.peer} after {p.last_common}: "
        f"ours {p.ours_next}; theirs {p.theirs_next}"
        for p, count in counted
    )


def lost(tallies: Iterable[Recorder]) -> str:
    """Return what could not be compared, and why."""
    return "\n".join(
        f"{count:6} {tally.row}: {why}" for tally in tallies for why, count in tally.lost.items()
    )
