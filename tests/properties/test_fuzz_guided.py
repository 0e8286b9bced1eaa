"""The fuzz targets under coverage guidance, for seconds: `scripts/fuzz` as a developer runs it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.properties.fuzz_targets import TARGETS

FUZZ = Path(__file__).parents[2] / "scripts" / "fuzz"


def test_a_few_seconds_of_each_target_find_nothing():
    command = [sys.executable, FUZZ, "--seconds", "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if "atheris cannot be installed" in run.stderr:
        pytest.skip(f"no atheris for Python {sys.version_info.major}.{sys.version_info.minor} here")
    executed = dict(re.findall(r"^(\w+) +(\d+) executions, 0 findings$", run.stdout, re.MULTILINE))

    assert run.returncode == 0, run.stdout + run.stderr
    assert executed.keys() == {*TARGETS, "total"}
    assert min(map(int, executed.values())) > 0
