"""A short run of scripts/accuracy: gdb, eu-stack and we look at the same stopped processes.

Law: each stack of ours must be whole and be confirmed by at least one of the two others; where one of them is
known to be wrong (docs/accuracy.md), the other is right.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfsample.replay.offline import replay
from sfsample.replay.saved import from_json
from tests.accuracy.peers import missing

SCRIPT = Path(__file__).parents[2] / "scripts" / "accuracy"

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]


def counted(row: str, tmp_path: Path) -> dict[str, Any]:
    """Look at 40 stacks of a row; check what holds of all, and return the counts."""
    counts = tmp_path / "counts.json"
    options = ["--only", row, "--stacks", "40", "--cache", tmp_path, "--save", tmp_path / "saved"]
    command = [sys.executable, SCRIPT, *options, "--json", counts]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (tally,) = json.loads(counts.read_text())
    assert tally["row"] == row
    assert tally["stacks"] >= 40
    assert tally["either"] == tally["ends"]["outermost"] == tally["stacks"], done.stdout
    assert tally["alone"] == 0
    return tally


def test_fixtures(tmp_path):
    """gdb is lost in code without tables, eu-stack at a null pointer; such stacks are saved and replayed."""
    tally = counted("fixtures, SFrame V3", tmp_path)
    assert {verdict for _, _, verdict, *_ in tally["partings"]} <= {"longer"}
    files = list((tmp_path / "saved").glob("*.json"))
    assert bool(files) == bool(tally["partings"])
    for file in files:
        saved = from_json(file.read_text())
        assert [(f.pc, str(f.found)) for f in replay(saved).stack.frames] == list(saved.frames)


def test_a_real_program(tmp_path):
    tally = counted("python3", tmp_path)
    assert tally["both"] == tally["stacks"]
