"""At every instruction the stack is the true one: where tables say what compilers hardly ever say.

Assembly with CFI made by hand: values and places by expressions, registers in registers, a CFA that is not
the caller's stack pointer or hangs on any register, states within states, operations that are obsolete or
another machine's.  As test_every_instruction.py, whose judge this is.
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
