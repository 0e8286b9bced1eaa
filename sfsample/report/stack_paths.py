"""Turns stacks into paths of labels, root first, for flame graphs.

A label is a function of a module, without an address.  The root (a process or a thread) and the mark of a
truncated stack are labels, too.  Labels are numbered in the order of their texts.  So sorting the paths gives
the order of the boxes in a flame graph.
"""

from collections.abc import Sequence
from operator import eq
from typing import NamedTuple

from sfsample.report.report import Report, truncation_mark

_INNERMOST = "context"  # `found` of an innermost frame (read from registers: no stepper found it)


class Label(NamedTuple):
    """The text of a box, and the path of its module (for a Python function: of its source file)."""

    text: str
    module: str | None = None


class StackPaths(NamedTuple):
    """The labels of a report, and a path for each stack."""

    labels: tuple[Label, ...]
    found: tuple[str, ...]  # steppers that found the frames of each label: "eh_frame, sframe"
    paths: tuple[tuple[int, ...], ...]  # indexes of labels, root first


def stack_paths(report: Report, *, threads: bool) -> StackPaths:
    """Return the path of each stack of a report.  `threads`: each thread has its own root."""
    roots = []  # of each stack: the process or thread, and the mark of truncation
    for stack in report.stacks:
        thread, mark = report.threads[stack.thread], truncation_mark(stack)
        roots.append((Label(thread.label if threads else thread.process), *([Label(mark)] if mark else [])))
    frame_labels = [
        Label(frame.text, frame.file if frame.kind == "p" else frame.module) for frame in report.frames
    ]
    labels = sorted(
        {*frame_labels, *(label for root in roots for label in root)},
        key=lambda label: (label.text, label.module or ""),
    )
    number = {label: at for at, label in enumerate(labels)}
    frames = [number[label] for label in frame_labels]
    paths = tuple(
        (*[number[label] for label in root], *[frames[at] for at in reversed(stack.frames)])
        for root, stack in zip(roots, report.stacks, strict=True)
    )
    found: list[set[str]] = [set() for _ in labels]
    for at, frame in zip(frames, report.frames, strict=True):
        found[at].add(frame.found)
    texts = (", ".join(sorted(each - {_INNERMOST, ""})) or max(each, default="") for each in found)
    return StackPaths(tuple(labels), tuple(texts), paths)


def common_prefix_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the number of labels that two paths share from the root on."""
    same = list(map(eq, first, second))
    return same.index(False) if False in same else len(same)
