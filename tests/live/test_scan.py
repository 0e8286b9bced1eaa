"""The scan finds the caller of code without tables, if no stale return address is on the stack."""

import pytest

from sfsample.core.arch import AARCH64
from sfsample.core.stack import Found
from sfsample.unwind.unwinder import ALWAYS, CHOICES
from tests.live.chains import Checker, listed_chains, needs_generated_code
from tests.live.recording import record_samples
from tests.live.targets import ARCH, fixture, running


@pytest.mark.live
@needs_generated_code
@pytest.mark.skipif(
    ARCH is AARCH64, reason="the caller's CFA needs the frame pointer, which a scan does not recover"
)
def test_scan_finds_the_caller_of_generated_code():
    program = str(fixture("v3"))
    steppers = (*ALWAYS, *(stepper for name in ("sframe", "eh_frame", "scan") for stepper in CHOICES[name]))
    with running(program, "framepointer") as target:
        profile = record_samples(target.pid, steppers=steppers)
        Checker(program).check(profile, {target.pid: listed_chains(program)["framepointer"]}, labels=False)
    assert profile.stats.frames[Found.SCAN] == profile.stats.samples
    assert Found.FRAME_POINTER not in profile.stats.frames
