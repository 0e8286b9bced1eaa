"""A short run of scripts/accuracy: gdb, eu-stack and we look at the same stopped processes.

Law: each stack of ours must be whole and be confirmed by at least one of the two others; where one of them is
known to be wrong (docs/accuracy.md), the other is right.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accuracy.peers import missing

SCRIPT = Path(__file__).parents[2] / "scripts" / "accuracy"

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]


@pytest.mark.parametrize("row", ["fixtures, SFrame V3", "python3"])
def test_gdb_and_eu_stack_agree(tmp_path, row):
    counts = tmp_path / "counts.json"
    command = [sys.executable, SCRIPT, "--only", row, "--stacks", "40", "--cache", tmp_path, "--json", counts]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (tally,) = json.loads(counts.read_text())
    assert tally["row"] == row
    assert tally["stacks"] >= 40
    assert tally["either"] == tally["ends"]["outermost"] == tally["stacks"], done.stdout
    assert tally["alone"] == 0
    assert tally["both"] > 0.8 * tally["stacks"]
