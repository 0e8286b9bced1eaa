"""Tests of JSON text: it is ASCII, and parsers accept it."""

import json

from sfsample.report.json_text import json_text


def test_document_is_one_line_of_json():
    assert json_text({"a": [1, None, "b"]}) == '{"a": [1, null, "b"]}\n'


def test_any_text_is_written_in_ascii_and_read_back():
    document = {"name": "é\N{GRINNING FACE}\n", "n": 1}
    text = json_text(document, indent=1)

    assert text.isascii()
    assert json.loads(text) == document


def test_bytes_that_are_not_utf8_become_replacement_characters():
    name = b"/x/\xff\xfe".decode("utf-8", "surrogateescape")

    assert json.loads(json_text({"path": name})) == {
        "path": "/x/\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    }
