"""In cpu mode a function's share of the samples is its share of CPU time, also where no CPU is free.

The program itself measures its CPU time; in the second case each CPU also runs a busy thread of another
program.  The tolerance follows from the number of samples, plus what the kernel adds when it switches threads
(`_BLUR`).
"""

import os
from math import sqrt

import pytest

import sfsample
from tests.live.compiled import compile_c, needs_gcc
from tests.live.compiled import started as begun
from tests.live.cpu_time import SOURCE, cpu_ns, measured_by, samples_of, shares
from tests.live.recording import record_samples
from tests.live.targets import started

pytestmark = [pytest.mark.live, needs_gcc]

_SAMPLES = 80
_SIGMAS = 4.0
_BLUR = 0.03  # of the CPU time: the kernel charges some of the context switch to the thread


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return compile_c(tmp_path_factory.mktemp("cpu"), "parts", SOURCE, "-pthread")


@pytest.mark.parametrize("others", [0, os.cpu_count()])
def test_shares_are_those_of_the_cpu_time(program, others):
    with started([str(program), str(others), "{fd}"]) as beside:
        beside.await_ready()
        with started([str(program), "1", "{fd}", "sleeps"]) as target:
            target.await_ready()
            before = measured_by(target)
            profile = record_samples(target.pid, _SAMPLES, rate=400)
            expected = shares(measured_by(target) - before)
            target.assert_unharmed()
    counts = samples_of(profile)
    number = sum(counts.values())
    found = shares(counts)
    for name, share in expected.items():
        tolerance = _SIGMAS * sqrt(share * (1 - share) / number) + _BLUR
        assert abs(found.get(name, 0) - share) <= tolerance, (name, found, expected, number)


STORM = r"""
#include <pthread.h>
#include <stdio.h>
static void *work(void *unused) { for (volatile int i = 0; i < 30000; i++); return unused; }
int main(void)
{
    puts("ready"); fflush(stdout);
    for (pthread_t thread;;)
        if (!pthread_create(&thread, 0, work, 0)) pthread_join(thread, 0);
}
"""


def test_cpu_time_of_threads_that_come_and_go_is_charged(tmp_path):
    """The process states its CPU time before, during and after the recording: the charge lies between."""
    with begun(compile_c(tmp_path, "storm", STORM, "-lpthread")) as target:
        inside: list[int] = []
        profile = sfsample.Profile(99)

        def enough() -> bool:
            if profile.stats.samples:  # after the first tick
                inside.append(cpu_ns(target.pid))
            return profile.stats.samples >= _SAMPLES // 4

        first = cpu_ns(target.pid)
        sfsample.record(target.pid, should_stop=enough, profile=profile)
        last = cpu_ns(target.pid)
    assert inside[-1] - inside[0] <= profile.stats.cpu_charged_ns <= last - first
