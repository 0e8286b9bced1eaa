"""`-f html`: one file with an interactive flame graph; it needs neither a network nor a server.

The sources are in report/writers/page/, and only this module puts them together.  The profile is JSON in a
script element with every `<` escaped, so that no name can end the element.

Invariant: no name becomes markup, and the page makes no request (tests/browser/test_page.py).
"""

import os
import re
from typing import Any

from sfsample.report.json_text import json_text
from sfsample.report.report import Report
from sfsample.report.writers.page_data import page_data

_PAGE = os.path.join(os.path.dirname(__file__), "page")
_PLACEHOLDER = re.compile(r"/\*\{\{([a-z.]+)\}\}\*/")  # a file of the page, or "profile"


def write(report: Report, *, threads: bool) -> bytes:
    """Return the page.  `threads`: each thread has a root of its own."""
    return page(page_data(report, threads=threads))


def page(data: dict[str, Any]) -> bytes:
    """Return the page that shows `data`, which is what `page_data` returns."""
    text = json_text(data).replace("<", "\\u003c")
    html = _PLACEHOLDER.sub(
        lambda name: text if name[1] == "profile" else _source(name[1]), _source("page.html")
    )
    return html.encode()


def _source(name: str) -> str:
    with open(os.path.join(_PAGE, name), encoding="utf-8") as file:
        return file.read()
