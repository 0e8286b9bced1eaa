"""A thread that sleeps where its stack hangs on the frame pointer is stopped once, not at each tick."""

import pytest

import sfsample
from sfsample.model import Capture, StopReason
from tests.live.recording import record_samples
from tests.live.targets import states, wait_until
from tests.live.test_breakers import compile_c, needs_gcc, started

pytestmark = [pytest.mark.live, needs_gcc]

# The frame of `asleep` has a size that only the frame pointer knows.
SLEEPER = """
#include <stdio.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) void asleep(int size)
{
    char frame[size];
    memset(frame, 0, size);
    puts(frame[0] ? "no" : "ready");
    fflush(stdout);
    pause();
    __asm__ volatile("" : : "r"(frame) : "memory");
}
int main(int count, char **words) { (void)words; asleep(100 * count); return 0; }
"""


def test_one_stop_tells_for_as_long_as_it_sleeps_there(tmp_path):
    with started(compile_c(tmp_path, "sleeper", SLEEPER)) as process:
        wait_until(lambda: states(process.pid) == {"S"}, "it sleeps")
        profile = record_samples(process.pid, 40, rate=50, mode="wall")

    stats = profile.stats
    assert stats.pauses.count == 1
    assert stats.captures[Capture.READ] + stats.captures[Capture.REUSED] > 0
    assert stats.captures.total() == stats.samples
    assert set(stats.stacks) == {StopReason.OUTERMOST}
    [line] = sfsample.folded(profile).splitlines()
    assert ";main;asleep;" in line
