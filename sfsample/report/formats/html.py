"""`-f html`: one file with an interactive flame graph, which needs no network and no server.

The sources of the page are in report/formats/page/; this module joins them.  The profile is JSON in a script
element, which page/profile.js reads.  Every `<` is escaped, so that no name can end the element.

Paths are sorted, and each path is written as its difference from the previous path.  So the page builds its
tree in one pass, in the order of drawing.  Numbers are written as letters (`NumberWords`), because a browser
reads letters faster than digits.

Invariant: no name becomes markup, and the page makes no request (tests/browser/test_page.py).
"""

import os
import re
from itertools import chain, starmap
from operator import add
from typing import Any

from sfsample.core.local_time import zone_id
from sfsample.core.quantities import counted
from sfsample.report.caption import amounts, label_texts, losses, process_ids
from sfsample.report.formats.html_time_line import NumberWords, slices_data
from sfsample.report.json_text import json_text
from sfsample.report.report import Report
from sfsample.report.stack_paths import common_prefix_length, stack_paths
from sfsample.report.time_slices import TimeSlices
from sfsample.report.waits import wait_lines
from sfsample.symbolize.named_frame import clean_name

_PAGE = os.path.join(os.path.dirname(__file__), "page")
_MODES = {"cpu": "running threads only", "wall": "sleeping threads too"}
_Row = tuple[tuple[int, ...], int]  # path and thread index
_RAW_LABELS = ("comm=", "host.name=", "process.", "container.id=")  # labels that tell a person nothing new
_PLACEHOLDER = re.compile(r"/\*\{\{([a-z.]+)\}\}\*/")  # a file of the page, or "profile"


def write(report: Report, *, threads: bool, time_slices: TimeSlices | None = None) -> bytes:
    """Return the page.  `threads`: each thread has its own root."""
    return page(page_data(report, threads=threads, time_slices=time_slices))


def page(data: dict[str, Any]) -> bytes:
    """Return the page that shows `data`, the result of `page_data`."""
    text = json_text(data).replace("<", "\\u003c")
    html = _PLACEHOLDER.sub(
        lambda name: text if name[1] == "profile" else _source(name[1]), _source("page.html")
    )
    return html.encode()


def _source(name: str) -> str:
    with open(os.path.join(_PAGE, name), encoding="utf-8") as file:
        return file.read()


def page_data(report: Report, *, threads: bool, time_slices: TimeSlices | None = None) -> dict[str, Any]:
    """Return the data of the page: texts and numbers only."""
    paths, stats = stack_paths(report, threads=threads), report.stats
    sums: dict[_Row, tuple[int, ...]] = {}  # stacks that differ only in addresses have the same path
    for path, stack in zip(paths.paths, report.stacks, strict=True):
        row = path, stack.thread
        sums[row] = tuple(map(add, sums[row], stack.weights)) if row in sums else stack.weights
    rows = sorted(sums.items())
    place = {row: at for at, (row, _) in enumerate(rows)}
    row_of = [place[path, stack.thread] for path, stack in zip(paths.paths, report.stacks, strict=True)]
    modules = {path: at for at, path in enumerate(dict.fromkeys(label.module for label in paths.labels))}
    waits = {frame.text: frame.raw or "" for frame in report.frames if frame.kind == "w"}
    return {
        "title": report.process_names() or "nothing",
        "recorded": {
            "who": process_ids(report),
            "host": report.host,
            "labels": _readable_labels(report),
            "all_labels": ", ".join(label_texts(report)),
            "started_ns": report.started_ns,
            "by": clean_name(recorder) if (recorder := stats.text("recorder")) else "",
            "what": _MODES.get(stats.text("mode") or ""),
        },
        "zone": zone_id(),
        "extent": ", ".join(amounts(report)),
        "losses": losses(report),
        "waits": [*wait_lines(report, {})],
        "weights": list(report.weights),
        "diff": False,
        "threads": [thread.label for thread in report.threads],
        "modules": list(modules),
        "frames": {
            "text": [label.text for label in paths.labels],
            "module": [modules[label.module] for label in paths.labels],
            "found": list(paths.found),
            "wait": [waits.get(label.text, "") for label in paths.labels] if waits else [],
        },
        "paths": _pack([path for (path, _), _ in rows]),
        "stacks": {
            "thread": [thread for (_, thread), _ in rows],
            "weights": [[weights[at] for _, weights in rows] for at in range(len(report.weights))],
        },
        "slices": slices_data(time_slices, row_of, report.weights) if time_slices else None,
    }


def _readable_labels(report: Report) -> str:
    """Return the labels for people, labels of --label first, and the number of the other labels."""
    texts = label_texts(report)
    shown = [text for text in reversed(texts) if not text.startswith(_RAW_LABELS)]
    others = counted(len(texts) - len(shown), "label")
    return ", ".join(shown) + f"{' and ' * bool(shown)}{others}" * (len(shown) < len(texts))


def _pack(paths: list[tuple[int, ...]]) -> dict[str, Any]:
    """Return for each path the number of labels shared with the previous path, and the remaining labels."""
    shared = list(starmap(common_prefix_length, zip([(), *paths], paths, strict=False)))
    ends = [path[length:] for path, length in zip(paths, shared, strict=True)]
    return {"shared": shared, "more": [*map(len, ends)], "letters": NumberWords().text(chain(*ends))}
