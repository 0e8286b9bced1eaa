"""Perf sampling learns how many bytes of a stack to copy, and is not used if these are too many."""

import os
import signal

import pytest

from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.process.perf_events import can_set_timers
from sfsample.recording.perf_sampler import PerfSampler
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.targets import ARCH, fixture, running
from tests.live.test_choose_sampler import SAMPLES, by_both, recorded

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not can_set_timers([os.getpid()], ARCH), reason="the kernel permits no timers"),
]

DEEPER = """
#include <signal.h>
#include <stdio.h>
static volatile sig_atomic_t deep;
static void deeper(int number) { deep = 1; }
static __attribute__((noinline)) void shallow(void) { for (int i = 0; i < 10000; i++) __asm__ volatile(""); }
static __attribute__((noinline)) void large(void) {
    volatile char much[24 << 10];  /* all of it touched: an interrupt reads no page that is not there */
    for (unsigned i = 0; i < sizeof much; i += 1024) much[i] = 1;
    shallow();
    much[1] = 1;
}
int main(void) {
    signal(SIGUSR1, deeper);
    puts("ready"); fflush(stdout);
    for (;;) if (deep) large(); else shallow();
}
"""


@needs_gcc
def test_stacks_that_grow_are_copied_by_timers(tmp_path):
    def grown(profile):
        events = profile.stats.captures[Capture.EVENT]
        if events < SAMPLES:
            return False
        process.send_signal(signal.SIGUSR1)
        return events >= 20 * SAMPLES

    with started(compile_c(tmp_path, "deeper", DEEPER)) as process:
        stats = recorded(process.pid, grown).stats
    assert stats.stacks[StopReason.OUTERMOST] > stats.stacks[StopReason.STACK_COPY_ENDED]


def test_size_of_copies_is_learned_from_samples_of_the_timers(monkeypatch):
    """The first two or three samples are too few to know the size."""
    counts: list[int] = []
    replace_timers = PerfSampler._replace_timers

    def note(self):
        counts.append(self._stack_use.samples)
        replace_timers(self)

    monkeypatch.setattr(PerfSampler, "_replace_timers", note)
    with running(fixture("v3"), "leaf") as target:
        recorded(target.pid, by_both)
    assert min(counts) >= 20


DEEP = """
#include <stdio.h>
static __attribute__((noinline)) void shallow(void) { for (int i = 0; i < 10000; i++) __asm__ volatile(""); }
int main(void) {
    volatile char much[128 << 10];
    for (unsigned i = 0; i < sizeof much; i += 1024) much[i] = 1;
    puts("ready"); fflush(stdout);
    for (;;) { shallow(); much[1] = 1; }
}
"""


@needs_gcc
def test_stacks_that_timers_cannot_copy_keep_the_stops(tmp_path):
    with started(compile_c(tmp_path, "deep", DEEP)) as process:
        stats = recorded(process.pid, lambda _: False, duration=1.5).stats
    assert stats.timers_since_s is None
    assert stats.engine_why == "no CPU was free, but stacks are larger than the 60 KiB that a timer can copy"
    assert {*stats.stacks} == {StopReason.OUTERMOST}
