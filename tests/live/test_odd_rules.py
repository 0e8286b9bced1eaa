"""At every instruction each unwinder returns the true stack, with CFI that compilers hardly ever write.

The program is assembly with hand-written CFI: values and locations by expressions, registers saved in
registers, a CFA that is not the caller's stack pointer or is computed from any register, nested remembered
states, obsolete operations and those of other architectures.  The judge is that of test_every_instruction.py.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sfsample.core.stack import Found
from tests.live.stepping import stepped
from tests.live.test_every_instruction import Judge, begin, judged

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the program with"),
]
SOURCE = Path(__file__).parent / "sources" / "odd_rules.S"


def test_odd_rules(tmp_path):
    subprocess.run(["gcc", SOURCE, "-o", tmp_path / "steps"], check=True)
    with stepped(str(tmp_path / "steps")) as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid)
    judge.check(set())
    assert judge.counts["instructions"] == judge.counts[Found.EH_FRAME] >= 120
