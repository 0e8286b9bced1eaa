"""Stacks as paths of labels, root first: what every flame graph is drawn from.

Law: a label is a function of a module, wherever in it; the process (or thread) and the mark of a truncated
stack are labels too.  Labels are numbered in the order of their texts, so that sorted paths lie as boxes do.
"""

from typing import NamedTuple

from sfsample.report.report import Report, truncation

_INNERMOST = "context"  # how the innermost frame of every stack is found; it says nothing of the function


class Label(NamedTuple):
    """What one box says."""

    text: str
    module: str | None = None


class Paths(NamedTuple):
    """Labels, how the frames of each were found ("sframe", "eh_frame, sframe"), and a path for each stack."""

    labels: tuple[Label, ...]
    found: tuple[str, ...]
    paths: tuple[tuple[int, ...], ...]


def label_paths(report: Report, *, threads: bool) -> Paths:
    """Return the paths of a report's stacks, in its order.  `threads`: each thread has a root of its own."""
    heads = [_head(report, at, threads=threads) for at in range(len(report.stacks))]
    places = [Label(frame.text, frame.module) for frame in report.frames]
    labels = sorted({*places, *(label for head in heads for label in head)}, key=_order)
    number = {label: at for at, label in enumerate(labels)}
    frames = [number[place] for place in places]
    paths = tuple(
        (*[number[label] for label in head], *[frames[at] for at in reversed(stack.frames)])
        for head, stack in zip(heads, report.stacks, strict=True)
    )
    found: list[set[str]] = [set() for _ in labels]
    for at, frame in zip(frames, report.frames, strict=True):
        found[at].add(frame.found)
    return Paths(tuple(labels), tuple(map(_found, found)), paths)


def _head(report: Report, at: int, *, threads: bool) -> tuple[Label, ...]:
    stack = report.stacks[at]
    mark = truncation(stack)
    return (Label(report.root(stack, threads=threads)), *([Label(mark)] if mark else []))


def _order(label: Label) -> tuple[str, str]:
    return label.text, label.module or ""


def _found(ways: set[str]) -> str:
    return ", ".join(sorted(ways - {_INNERMOST, ""})) or max(ways, default="")
