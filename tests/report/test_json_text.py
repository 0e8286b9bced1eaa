"""JSON text: ASCII, and without what parsers refuse."""

import json

from sfsample.report.json_text import json_text


def test_plain():
    assert json_text({"a": [1, None, "b"]}) == '{"a": [1, null, "b"]}\n'


def test_text_of_any_kind_is_ascii_and_comes_back():
    document = {"name": "é\N{GRINNING FACE}\n", "n": 1}
    text = json_text(document, indent=1)

    assert text.isascii()
    assert json.loads(text) == document


def test_bytes_that_were_not_utf8():
    name = b"/x/\xff\xfe".decode("utf-8", "surrogateescape")

    assert json.loads(json_text({"path": name})) == {
        "path": "/x/\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    }
