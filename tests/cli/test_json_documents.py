"""docs/profile-json.md and docs/diff.md list exactly the keys that are written, and the types of values.

The tables are read from the documents.
"""

import json
import os
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from sfsample.report.difference import Ordinary, compare_sides, count
from sfsample.report.formats import read_report
from sfsample.report.formats.difference import difference_json
from sfsample.report.formats.profile_json import document
from sfsample.report.report import Report
from tests.builders.reports import compare, from_lines, full
from tests.live.cli_runner import sfsample
from tests.live.targets import FIXTURES

DOCS = Path(__file__).parents[2] / "docs"
HAS_TYPE = {
    "text": lambda value: isinstance(value, str),
    "texts": lambda value: all(isinstance(item, str) for item in value),
    "integer": lambda value: type(value) is int,
    "integers": lambda value: all(type(item) is int for item in value),
    "number": lambda value: type(value) in (int, float),
    "numbers": lambda value: all(type(item) in (int, float) for item in value),
    "boolean": lambda value: isinstance(value, bool),
    "address": lambda value: isinstance(value, str) and re.fullmatch("0x[0-9a-f]+", value),
    "list": lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value),
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
    required = {key for key, words in types.items() if "absent" not in words}
    assert required <= set(value) <= set(types)
    for key, item in value.items():
        assert any(HAS_TYPE[word](item) for word in types[key]), (key, item)


def check_all(whole: dict[str, Any], name: str) -> None:
    tables_by_key = tables(name)
    check(whole, tables_by_key.pop(""))
    for key, types in tables_by_key.items():
        for value in whole[key] if isinstance(whole[key], list) else filter(None, [whole[key]]):
            check(value, types)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Report:
    path = tmp_path_factory.mktemp("recorded") / "out.json"
    done = sfsample("record", "-d", "1s", "--mode", "wall", "-o", path, "--", FIXTURES / "v3/workload", "30")
    assert done.code == 0, done.err
    return read_report(str(path))


def test_documents_have_a_table_for_every_object():
    assert set(tables("profile-json.md")) == {
        "", "target", "threads", "modules", "frames", "stacks", "timeline"}  # fmt: skip
    assert set(tables("diff.md")) == {"", "inputs", "ordinary", "all", "self", "total"}


@pytest.mark.parametrize("report", [full(), from_lines("p;a;b 3", "p;[x+0x1] 1"), from_lines()])
def test_profile_has_the_keys_of_its_document(report):
    check_all(document(report), "profile-json.md")


@pytest.mark.live
@pytest.mark.any_load
def test_recording_has_the_keys_of_its_document(recorded):
    check_all(document(recorded), "profile-json.md")
    assert (recorded.host, recorded.stats.text("mode")) == (os.uname().nodename, "wall")
    assert recorded.labels["comm"] == "workload"


@pytest.mark.live
@pytest.mark.any_load
def test_difference_has_the_keys_of_its_document(recorded):
    reports = (full(), from_lines("p;a 3", "p;b 900"), from_lines(), recorded)
    differences = [
        json.loads(difference_json(compare(before, after))) for before in reports for after in reports
    ]
    side = count(full())
    for number in (0, 3):  # pairs of ordinary times
        found = compare_sides(side, side, ordinary=Ordinary(((side, side),) * number, "other days"))
        differences.append(json.loads(difference_json(found)))
    for difference in differences:
        check_all(difference, "diff.md")
    rows = chain.from_iterable([*d["self"], *d["total"]] for d in differences)
    verdicts = {row["verdict"] for row in rows}
    assert verdicts == {"grew", "shrank", "noise"}
