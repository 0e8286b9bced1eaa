"""A short run of scripts/accuracy: gdb, eu-stack and sfsample unwind the same stopped processes.

Each stack of sfsample must be whole and confirmed by at least one of the two others.  Where one of them is
known to be wrong (docs/accuracy.md), the other is right; the functions where both are wrong are in BOTH_LOST.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sfsample.core.arch import AARCH64, AMD64, S390X
from sfsample.dumping.core import dump_core
from tests.accuracy.peers import missing
from tests.live.targets import ARCH, HANG_S

SCRIPT = Path(__file__).parents[2] / "scripts" / "accuracy"

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {', '.join(missing())}"),
]


# Both stop there: at a call as the last instruction; gdb in generated code, where eu-stack repeats the
# address.
BOTH_LOST = {AMD64: set(), AARCH64: {"framepointer_caller", "[anonymous]"}, S390X: {"noreturn_caller"}}[ARCH]


def others_are_wrong(counts: dict[str, Any]) -> int:
    """Return how many stacks differ from both others where both are known to be wrong.

    First: at a function of BOTH_LOST.  Second: at a thread's first instruction, to which both give its
    creator as caller; on AMD64 the table says that it has none.  Third: during lazy binding on AArch64, both
    repeat the caller, as the table of the loader's `_dl_runtime_resolve` is an instruction late.
    """
    return sum(
        count for _, peer, _, after, ours, theirs, count in counts["partings"]
        if peer == "gdb" and (after in BOTH_LOST or (ARCH is not AMD64 and ours == "end: outermost")
                              or (ARCH is AARCH64 and theirs == after))
    )  # fmt: skip


def counted(row: str, tmp_path: Path) -> dict[str, Any]:
    """Compare 40 stacks of a row of the report; assert what holds for every row, and return its counts."""
    counts = tmp_path / "counts.json"
    options = ["--only", row, "--stacks", "40", "--cache", tmp_path, "--save", tmp_path / "saved"]
    command = [sys.executable, SCRIPT, *options, "--json", counts]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20 * HANG_S)
    assert done.returncode == 0, done.stdout + done.stderr
    (counts,) = json.loads(counts.read_text())
    assert counts["row"] == row
    assert counts["stacks"] >= 40
    wrong = others_are_wrong(counts)
    assert counts["either"] + wrong == counts["ends"]["outermost"] == counts["stacks"], done.stdout
    assert counts["alone"] <= wrong
    return counts


def test_fixtures(tmp_path):
    """gdb stops in code without tables, eu-stack at a null pointer; such stacks are saved as core files."""
    counts = counted("fixtures, SFrame V3", tmp_path)
    # elsewhere eu-stack repeats a frame that it cannot unwind
    wrong = {"longer"} if ARCH is AMD64 else {"longer", "different"}
    assert {verdict for _, _, verdict, *_ in counts["partings"]} <= wrong
    files = list((tmp_path / "saved").glob("*.json"))
    assert bool(files) == bool(counts["partings"])
    for file in files:
        [thread] = dump_core(str(file.with_suffix(".core"))).threads
        frames = [[hex(frame.pc), str(frame.found)] for frame in thread.stack.frames]
        assert frames == json.loads(file.read_text())["frames"]


def test_stacks_of_python_agree(tmp_path):
    counts = counted("python3", tmp_path)
    if ARCH is AMD64:  # elsewhere one of them may stop in code without tables
        assert counts["both"] == counts["stacks"]
