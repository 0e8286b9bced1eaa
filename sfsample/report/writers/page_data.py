"""What the html page draws, as small as it can be said: page/profile.js reads it.

Law: paths are sorted, and each says only how it differs from the one before it, so that the page finds its
tree in one pass, in the order in which it draws.  A function is a run of `width` letters, '?' being 0: 50,000
stacks are millions of them, and a browser reads letters faster than numbers.
"""

from itertools import starmap
from operator import add, eq
from typing import Any

from sfsample.report.about import about, losses, title
from sfsample.report.paths import Paths, label_paths
from sfsample.report.report import Report

_ZERO, _BASE = ord("?"), 64
_Row = tuple[tuple[int, ...], int]  # path and thread


def page_data(report: Report, *, threads: bool) -> dict[str, Any]:
    """Return the object; texts and numbers only."""
    paths = label_paths(report, threads=threads)
    rows = sorted(_sums(report, paths).items())
    modules = {path: at for at, path in enumerate(dict.fromkeys(label.module for label in paths.labels))}
    return {
        "title": title(report),
        "about": about(report),
        "losses": losses(report),
        "weights": list(report.weights),
        "diff": False,
        "threads": [_thread_name(report, at) for at in range(len(report.threads))],
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


def _sums(report: Report, paths: Paths) -> dict[_Row, tuple[int, ...]]:
    """Return the weights of each path and thread; stacks that differ by places within functions are one."""
    sums: dict[_Row, tuple[int, ...]] = {}
    for path, stack in zip(paths.paths, report.stacks, strict=True):
        row = path, stack.thread
        sums[row] = tuple(map(add, sums[row], stack.weights)) if row in sums else stack.weights
    return sums


def _pack(paths: list[tuple[int, ...]], labels: int) -> dict[str, Any]:
    """Return columns by path: how many labels it shares with the one before, how many follow, and which."""
    width = 1
    while _BASE**width < labels:
        width += 1
    words = [_word(number, width) for number in range(labels)]
    shared = list(starmap(_shared, zip([(), *paths], paths, strict=False)))
    letters = "".join(
        [words[number] for path, keep in zip(paths, shared, strict=True) for number in path[keep:]]
    )
    more = [len(path) - keep for path, keep in zip(paths, shared, strict=True)]
    return {"shared": shared, "more": more, "width": width, "letters": letters}


def _word(number: int, width: int) -> str:
    return "".join(chr(_ZERO + number // _BASE**place % _BASE) for place in reversed(range(width)))


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return the length of what two paths begin with."""
    same = list(map(eq, one, other))
    return same.index(False) if False in same else len(same)


def _thread_name(report: Report, at: int) -> str:
    thread = report.threads[at]
    return thread.name if thread.tid is None else f"{thread.name}/{thread.tid}"
