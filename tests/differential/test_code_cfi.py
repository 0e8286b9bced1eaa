"""Code analysis gives the rows of the unwind tables, in some functions of libc and libstdc++.

It is never wrong where it has a row, and it has one nearly everywhere.  (All functions: scripts/compare-code
--share 1.)
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.formats.machine_code.decode_x86 import decode
from tests.builders.installed import library

SCRIPT = Path(__file__).parents[2] / "scripts" / "compare-code"


@pytest.mark.skipif(decode(b"\xc3", 0) is None, reason="no decoder for x86-64 here")
@pytest.mark.parametrize("name", ["libc.so.6", "libstdc++.so.6"])
def test_rows_are_those_of_the_tables(name):
    command = [sys.executable, SCRIPT, "--share", "0.01", library(name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {
        what: int(count) for count, what in re.findall(r"(\d+) ([a-z ]+)", done.stdout.partition(":")[2])
    }
    assert counts["same"] > 1000
    assert counts["same"] > 5 * counts.get("no row", 0)
