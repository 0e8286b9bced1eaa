"""Records by kernel timers (perf_event_open(2)), for tests that compare with what the target states."""

import os

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.process.kernel_symbols import KernelSymbols
from sfsample.process.perf_events import PerfEvents
from sfsample.recording.perf_process import PerfProcess, StackUse
from sfsample.recording.profile import Profile
from sfsample.unwind.unwinder import Unwinder
from tests.live.recording import fewer
from tests.live.targets import ARCH, HANG_S


def _refused() -> str:
    """Return why the kernel permits no timers, or ''."""
    try:
        PerfEvents([os.getpid()], [os.getpid()], ARCH, 10**7, 1024).close()
    except sfsample.TargetError as refusal:
        return f"{refusal}: {refusal.help[0]}"
    return ""


needs_timers = pytest.mark.skipif(bool(_refused()), reason=_refused())

SAMPLES = fewer(100)

# On a busy machine sfsample may not run for a second, and the kernel drops samples; they are counted.
FULL = "not captured: the ring was full before it was read"

REPLACED = "not captured: its code was replaced before the stack could be unwound"


def record_by_perf(pid, samples=SAMPLES, until=lambda _profile: True, rate=500, **options):
    """Record until there are `samples` samples and `until` holds; assert that no thread was stopped."""
    profile = Profile(rate)
    stats = profile.stats
    sfsample.record(
        pid,
        4 * HANG_S,
        sfsample.RecordOptions(rate=rate, perf_events=True, **options),
        profile=profile,
        should_stop=lambda: stats.samples >= samples and until(profile),
    )
    assert stats.samples >= samples, f"{stats.samples} samples in {stats.duration_s:.1f} s"
    assert stats.captures[Capture.EVENT] == stats.samples
    assert stats.pauses.count == 0
    return profile


def perf_process_of(process):
    """Return the object that counts the timer samples of an open process."""
    unwinder, symbols = Unwinder(process.modules), KernelSymbols()
    return PerfProcess(process, unwinder, Profile(99), StackUse(), kernel_symbols=symbols, is_new=False)


def accounted_ns(stats):
    """Return the CPU time of all samples, those that the kernel dropped included."""
    return stats.cpu_sampled_ns + stats.problems[FULL] * 1e9 / stats.rate_hz


# Runs one thread after another, each for 40 ms of CPU time.
ONE_BY_ONE = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
static volatile long n;
__attribute__((noinline)) static void in_a_thread(void)
{
    struct timespec t;
    do {
        for (int i = 0; i < 10000; i++) n++;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    } while (!t.tv_sec && t.tv_nsec < 40000000);
}
static void *work(void *unused) { in_a_thread(); __asm__ volatile(""); return unused; }
int main(void)
{
    puts("ready"); fflush(stdout);
    for (pthread_t thread;;)
        if (!pthread_create(&thread, 0, work, 0)) pthread_join(thread, 0);
}
"""


def files_of(pid):
    """Yield the names of the open files of a process."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
