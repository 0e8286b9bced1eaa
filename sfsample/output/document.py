"""Results as JSON text.

Law: one place turns documents into text.  Bytes that were not UTF-8 (paths, names) come in as lone surrogates
and leave as U+FFFD, because JSON parsers refuse the former.
"""

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(document: dict[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, with a newline at its end."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text) + "\n"
