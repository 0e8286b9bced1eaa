"""docs/profile-json.md and docs/diff.md say exactly what is written: every key, and what can stand there.

Law: the tables are read from the documents; an object has the keys of its table and no other.
"""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sfsample.report.difference import compare
from sfsample.report.readers.read import read_report
from sfsample.report.report import Report
from sfsample.report.writers.difference import difference_json
from sfsample.report.writers.profile_json import document
from tests.builders.reports import from_lines, full
from tests.live.cli_runner import sfsample
from tests.live.targets import FIXTURES

DOCS = Path(__file__).parents[2] / "docs"
IS = {
    "text": lambda value: isinstance(value, str),
    "texts": lambda value: all(isinstance(one, str) for one in value),
    "integer": lambda value: type(value) is int,
    "integers": lambda value: all(type(one) is int for one in value),
    "number": lambda value: type(value) in (int, float),
    "numbers": lambda value: all(type(one) in (int, float) for one in value),
    "boolean": lambda value: isinstance(value, bool),
    "address": lambda value: isinstance(value, str) and re.fullmatch("0x[0-9a-f]+", value),
    "list": lambda value: isinstance(value, list) and all(isinstance(one, dict) for one in value),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
    "absent": lambda _: False,
}


def tables(name: str) -> dict[str, dict[str, set[str]]]:
    """Return, for each object that a document describes (\"\": the whole), the types of each key."""
    _, whole, *more = re.split(r"^#+ (.*)$", (DOCS / name).read_text(), flags=re.MULTILINE)
    heads = [whole, *more[1::2]]
    found = {}
    for head, text in zip(heads, more[0::2], strict=True):
        rows = re.findall(r"^\| (`[^|]*`) \| ([^|]*) \| [^|]+ \|$", text, flags=re.MULTILINE)
        types = {
            key: set(words.split(" or ")) for keys, words in rows for key in re.findall(r"`(\w+)`", keys)
        }
        if types:
            found.update(dict.fromkeys(re.findall(r"`(\w+)`", head) or [""], types))
    return found


def check(value: dict[str, Any], types: dict[str, set[str]]) -> None:
    wanted = {key for key, words in types.items() if "absent" not in words}
    assert wanted <= set(value) <= set(types)
    for key, one in value.items():
        assert any(IS[word](one) for word in types[key]), (key, one)


def check_all(whole: dict[str, Any], name: str) -> None:
    said = tables(name)
    check(whole, said.pop(""))
    for key, types in said.items():
        for value in whole[key] if isinstance(whole[key], list) else filter(None, [whole[key]]):
            check(value, types)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("recorded") / "out.json"
    done = sfsample("record", "-d", "1s", "--mode", "wall", "-o", path, "--", FIXTURES / "v3/workload", "30")
    assert done.code == 0, done.err
    return read_report(str(path))


def test_every_object_has_a_table():
    assert set(tables("profile-json.md")) == {"", "threads", "modules", "frames", "stacks", "timeline"}
    assert set(tables("diff.md")) == {"", "all", "self", "total"}


@pytest.mark.parametrize("report", [full(), from_lines("p;a;b 3", "p;[x+0x1] 1"), from_lines()])
def test_a_profile_is_as_its_document_says(report):
    check_all(document(report), "profile-json.md")


@pytest.mark.live
def test_a_recording_is_as_its_document_says(recorded):
    check_all(document(recorded), "profile-json.md")


@pytest.mark.live
def test_a_difference_is_as_its_document_says(recorded):
    reports = (full(), from_lines("p;a 3", "p;b 900"), from_lines(), recorded)
    found = [difference_json(compare(before, after)) for before in reports for after in reports]
    for one in found:
        check_all(one, "diff.md")
    verdicts = {row["verdict"] for one in found for row in chain(one["self"], one["total"])}
    assert verdicts == {"grew", "shrank", "noise"}
