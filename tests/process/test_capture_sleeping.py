"""The registers that are known of a sleeping thread that was read without a stop."""

from errno import ENOSYS
from types import SimpleNamespace

import pytest

from sfsample.core.arch import AARCH64, AMD64, S390X
from sfsample.process.capture_sleeping import read_sleeping_thread
from sfsample.process.proc_text import SyscallInfo
from tests.builders.threads import thread

RAN = b"5000 70 3\n"
NEVER_RAN = (b"0 123 0\n", b":\t0\nnonvoluntary_ctxt_switches:\t0\n")  # of schedstat, of status
COPY = SimpleNamespace(fill=lambda *_: True, result=lambda *_: (None, False))


def registers(arch, counters: bytes) -> dict[int, int]:
    asleep = SyscallInfo(56, (11, 12, 13, 14, 15, 16), 0x7000, 0x4000)
    reading = read_sleeping_thread(arch, COPY, thread(1, counters=counters, asleep=asleep))
    assert reading is not None
    return reading.snapshot.registers


def test_pc_sp_and_arguments_are_known():
    known = {16: 0x4000, 7: 0x7000, 5: 11, 4: 12, 1: 13, 10: 14, 8: 15, 9: 16}
    assert registers(AMD64, RAN) == {**known, 0: 2**64 - ENOSYS}


@pytest.mark.parametrize("counters", NEVER_RAN)
@pytest.mark.parametrize(("arch", "result"), [(AMD64, 0), (AARCH64, 0), (S390X, 2)])
def test_result_of_clone_is_0_in_a_thread_that_never_ran(arch, result, counters):
    """This identifies the new thread, which has no caller.  Seen with stress-ng's clone."""
    assert registers(arch, counters)[result] == 0
    assert registers(arch, RAN).get(result) != 0
