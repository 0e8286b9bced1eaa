"""`-f html`: one file with an interactive flame graph, that needs no network and no server.

Law: the page is output/page/, put together here and nowhere else; what comes from the profile is JSON in a
script element with every `<` escaped, so that no name can end it.  Its policy allows no request at all.
"""

import os
import re
from typing import Any

from sfsample.report.json_text import json_text
from sfsample.report.report import Report
from sfsample.report.writers.page_data import page_data

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
