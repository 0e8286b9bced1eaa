"""Turns documents into JSON text.

Paths and names whose bytes are not UTF-8 arrive as lone surrogates.  JSON parsers refuse lone surrogates, so
they are written as U+FFFD.  The text is ASCII.  A document with NaN or Infinity, which JSON parsers refuse
too, raises ValueError.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_ESCAPED = re.compile(r"(\\[^u]|\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..")  # group 1: no lone surrogate


def json_text(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, with a newline at its end."""
    text = json.dumps(document, indent=indent, allow_nan=False)
    if "\\ud" in text:  # a surrogate, which is rare
        text = _ESCAPED.sub(lambda found: found[1] or "\\ufffd", text)
    return text + "\n"
