"""Makes the data that the html page draws, in a compact form that page/profile.js reads.

Paths are sorted, and each states only how it differs from the one before it, so that the page builds its tree
in one pass, in the order in which it draws.  A label's number is written as `width` letters, '?' being 0:
50,000 stacks have millions of such numbers, and a browser reads letters faster than numbers.
"""

from itertools import starmap
from operator import add, eq
from typing import Any

from sfsample.report.caption import extent, losses, title
from sfsample.report.report import Report
from sfsample.report.stack_paths import StackPaths, stack_paths

_ZERO, _BASE = ord("?"), 64  # the letter for digit 0, and how many digits there are
_Row = tuple[tuple[int, ...], int]  # path and thread index


def page_data(report: Report, *, threads: bool) -> dict[str, Any]:
    """Return the object, of texts and numbers only.  `threads`: each thread has a root of its own."""
    paths = stack_paths(report, threads=threads)
    rows = sorted(_weights_by_row(report, paths).items())
    modules = {path: at for at, path in enumerate(dict.fromkeys(label.module for label in paths.labels))}
    return {
        "title": title(report),
        "extent": extent(report),
        "losses": losses(report),
        "weights": list(report.weights),
        "diff": False,
        "threads": [thread.label for thread in report.threads],
        "modules": list(modules),
        "frames": {
            "text": [label.text for label in paths.labels],
            "module": [modules[label.module] for label in paths.labels],
            "found": list(paths.found),
        },
        "paths": _pack([path for (path, _), _ in rows], len(paths.labels)),
        "stacks": {
            "thread": [thread for (_, thread), _ in rows],
            "weights": [[weights[at] for _, weights in rows] for at in range(len(report.weights))],
        },
    }


def _weights_by_row(report: Report, paths: StackPaths) -> dict[_Row, tuple[int, ...]]:
    """Return the weights of each path and thread; stacks that differ in addresses only have one path."""
    sums: dict[_Row, tuple[int, ...]] = {}
    for path, stack in zip(paths.paths, report.stacks, strict=True):
        row = path, stack.thread
        sums[row] = tuple(map(add, sums[row], stack.weights)) if row in sums else stack.weights
    return sums


def _pack(paths: list[tuple[int, ...]], label_count: int) -> dict[str, Any]:
    """Return columns by path: how many labels it shares with the path before, how many follow, and which."""
    width = 1
    while _BASE**width < label_count:
        width += 1
    words = [_word(number, width) for number in range(label_count)]
    shared = list(starmap(_common_prefix_length, zip([(), *paths], paths, strict=False)))
    letters = "".join(
        [words[number] for path, length in zip(paths, shared, strict=True) for number in path[length:]]
    )
    more = [len(path) - length for path, length in zip(paths, shared, strict=True)]
    return {"shared": shared, "more": more, "width": width, "letters": letters}


def _word(number: int, width: int) -> str:
    return "".join(chr(_ZERO + number // _BASE**place % _BASE) for place in reversed(range(width)))


def _common_prefix_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    same = list(map(eq, first, second))
    return same.index(False) if False in same else len(same)
