"""`-f html`: one file with an interactive flame graph, that needs no network and no server.

Law: the page is output/page/, put together here and nowhere else; what comes from the profile is JSON in a
script element with every `<` escaped, so that no name can end it.  Its policy allows no request at all.
"""

import os
import re
from collections.abc import Iterator
from time import gmtime, strftime
from typing import Any

from sfsample.output.document import json_text
from sfsample.output.losses import losses
from sfsample.report.merge import merge_by
from sfsample.report.report import Report, ReportFrame, truncation
from sfsample.report.tree import grow

_PAGE = os.path.join(os.path.dirname(__file__), "page")
_SLOT = re.compile(r"/\*\{\{([a-z.]+)\}\}\*/")


def write(report: Report, *, threads: bool) -> bytes:
    """Return the page.  `threads`: each thread is a tower of its own."""
    return page(page_data(report, threads=threads))


def page(data: dict[str, Any]) -> bytes:
    """Return the page that shows `data`."""
    text = json_text(data).replace("<", "\\u003c")
    whole = _SLOT.sub(lambda slot: text if slot[1] == "profile" else _source(slot[1]), _source("page.html"))
    return whole.encode()


def _source(name: str) -> str:
    with open(os.path.join(_PAGE, name), encoding="utf-8") as file:
        return file.read()


def page_data(report: Report, *, threads: bool) -> dict[str, Any]:
    """Return what page/profile.js reads: columns by frame, by node of the tree, and by stack."""
    report = merge_by(report, "function")
    table: dict[ReportFrame, int] = {frame: at for at, frame in enumerate(report.frames)}
    tree = grow(_paths(report, table, threads=threads))
    modules = {path: at for at, path in enumerate(dict.fromkeys(frame.module for frame in table))}
    return {
        "title": ", ".join(dict.fromkeys(thread.process for thread in report.threads)) or "nothing",
        "about": _about(report),
        "losses": losses(report),
        "weights": list(report.weights),
        "diff": False,
        "threads": [_thread_name(report, at) for at in range(len(report.threads))],
        "modules": list(modules),
        "frames": {
            "text": [frame.text for frame in table],
            "module": [modules[frame.module] for frame in table],
            "found": [frame.found for frame in table],
        },
        "tree": {
            "up": [node - parent for node, parent in enumerate(tree.parents)],  # small numbers are short
            "frame": list(tree.labels),
        },
        "stacks": {
            "node": tree.ends,
            "thread": [stack.thread for stack in report.stacks],
            "weights": list(map(list, zip(*(stack.weights for stack in report.stacks), strict=True)))
            or [[] for _ in report.weights],
        },
    }


def _paths(report: Report, table: dict[ReportFrame, int], *, threads: bool) -> Iterator[list[int]]:
    """Yield frame numbers, root first; roots and marks of truncation become frames too."""
    for stack in report.stacks:
        mark = truncation(stack)
        head = [report.root(stack, threads=threads), *([mark] if mark else [])]
        numbers = [table.setdefault(ReportFrame(text), len(table)) for text in head]
        yield [*numbers, *reversed(stack.frames)]


def _thread_name(report: Report, at: int) -> str:
    thread = report.threads[at]
    return thread.name if thread.tid is None else f"{thread.name}/{thread.tid}"


def _about(report: Report) -> str:
    parts = [f"{report.total():,} samples"]
    if report.duration_ns:
        parts.append(f"{report.duration_ns / 1e9:.1f} s")
    if report.rate_hz:
        parts.append(f"{report.rate_hz:g} Hz")
    if report.started_ns:
        parts.append(strftime("%Y-%m-%d %H:%M:%S UTC", gmtime(report.started_ns // 10**9)))
    return ", ".join(parts)
