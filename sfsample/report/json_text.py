"""Turns documents into JSON text.

The text is ASCII.  If a path or a name is not UTF-8, Python represents each wrong byte by a lone surrogate.
JSON parsers refuse lone surrogates, so U+FFFD is written instead.  JSON parsers also refuse NaN and Infinity;
a document with such a number raises ValueError.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

_ESCAPED = re.compile(r"(\\[^u]|\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..")  # group 1: escapes to keep


def json_text(document: Mapping[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, with a newline at the end."""
    text = json.dumps(document, indent=indent, allow_nan=False)
    if "\\ud" in text:  # a surrogate, which is rare
        text = _ESCAPED.sub(lambda found: found[1] or "\\ufffd", text)
    return text + "\n"
