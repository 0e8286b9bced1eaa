"""The example of docs/steppers.md, run on a process with generated code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.core.stack import Found
from sfsample.unwind.unwinder import DEFAULT_STEPPERS
from tests.live.chains import needs_generated_code
from tests.live.targets import fixture, running

PAGE = (Path(__file__).parents[2] / "docs/steppers.md").read_text(encoding="utf-8")


@pytest.mark.live
@pytest.mark.any_load
@needs_generated_code
def test_example_steps_through_generated_code():
    [example] = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    with running(fixture("v3"), "framepointer") as target:
        done = subprocess.run([sys.executable, "-c", example], env=os.environ | {"PID": str(target.pid)},
                              capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    *frames, reason = done.stdout.splitlines()
    labels = [line.split()[1] for line in frames]

    assert reason == "outermost"
    # spin, jit_callback, the generated code, its caller (found by the example's stepper), and so on to _start
    assert labels[:4] == ["context", "sframe", "sframe", "generated"]
    assert labels[4:7] == ["sframe", "sframe", "eh_frame"]


def test_document_names_every_stepper_in_order():
    [table] = re.findall(r"\| stepper .*?\n\n", PAGE, flags=re.DOTALL)
    labels = re.findall(r"`(\w+)`", "".join(line.rpartition("| ")[2] for line in table.splitlines()[2:]))
    default = [str(stepper.found) for stepper in DEFAULT_STEPPERS]

    assert labels == default
    assert {*labels, "context", "scan"} == set(Found)
