"""Results as JSON text.

Law: one place turns documents into text.  Bytes that were not UTF-8 (paths, names) come in as lone surrogates
and leave as U+FFFD, because JSON parsers refuse the former.  The text is ASCII, whatever the terminal.
"""

import json
import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def json_text(document: dict[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON, with a newline at its end."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    if not text.isascii():  # rare: once more, without surrogates and in ASCII
        text = json.dumps(json.loads(_SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)), indent=indent)
    return text + "\n"
