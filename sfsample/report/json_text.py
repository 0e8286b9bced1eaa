"""Turns documents into JSON text.

Paths and names whose bytes are not UTF-8 arrive as lone surrogates.  JSON parsers refuse those, so they are
written as U+FFFD.  The text is ASCII, whatever the terminal can show.
"""

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(document: dict[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, with a newline at its end."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    if not text.isascii():  # rare, so that most documents are encoded once only
        text = json.dumps(json.loads(_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)), indent=indent)
    return text + "\n"
