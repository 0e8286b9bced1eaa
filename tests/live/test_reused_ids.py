"""Threads that reuse the id of an ended thread keep their own names and functions.

The program chooses the ids itself; the name of each of its threads is that of its function.
"""

import os

import pytest

import sfsample
from sfsample.recording.profile import Profile
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.targets import HANG_S, assert_untraced, wait_until

LAST = "/proc/sys/kernel/ns_last_pid"
# Two of three threads run alpha; each lives for several ticks of the clock in which the kernel states start
# times.
TURNS = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static int again;
static pid_t before;
static long used_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
__attribute__((noinline)) static void alpha(void) { while (used_ms() < 30) __asm__ volatile(""); }
__attribute__((noinline)) static void beta(void) { while (used_ms() < 30) __asm__ volatile(""); }
static void *work(void *which) {
    prctl(PR_SET_NAME, which ? "beta" : "alpha");
    again += gettid() == before;
    before = gettid();
    if (which) beta(); else alpha();
    __asm__ volatile("");
    return 0;
}
int main(void) {
    int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY), turn = 0, written = 0;
    char text[16];
    sprintf(text, "%d", getpid() + 100);
    for (;; turn++) {
        pthread_t thread;
        if (pwrite(last, text, strlen(text), 0) < 0) return 1;
        if (pthread_create(&thread, 0, work, turn % 3 ? 0 : (void *)text)) return 1;
        pthread_join(thread, 0);
        if (again > 5 && !written++) { puts("ready"); fflush(stdout); }
    }
}
"""


@pytest.mark.live
@needs_gcc
@pytest.mark.skipif(not os.access(LAST, os.W_OK), reason=f"may not write {LAST}")
@pytest.mark.parametrize(
    "options",
    [{"perf_events": True}, {"perf_events": False}, {"mode": "wall"}],
    ids=["perf", "ptrace", "wall"],
)
def test_thread_with_a_reused_id_has_its_own_name(tmp_path, options):
    seen = set()
    with started(compile_c(tmp_path, "turns", TURNS, "-pthread")) as process:
        # on a busy machine, one recording may sample threads of one kind only
        def both_have_samples():
            seen.update(names_and_functions(process.pid, options))
            return {"alpha", "beta"} <= {name for name, _ in seen}

        wait_until(both_have_samples, "both have samples")
        assert_untraced(process.pid)
    seen -= {("turns", "alpha"), ("turns", "beta")}  # sampled just before the thread sets its name
    assert seen == {("alpha", "alpha"), ("beta", "beta")}


def names_and_functions(pid, options):
    """Record some samples; yield the name and the function of each thread."""
    profile = Profile(200)
    sfsample.record(
        pid,
        HANG_S,
        sfsample.RecordOptions(rate=200, **options),
        profile=profile,
        should_stop=lambda: profile.stats.samples > 200,
    )
    for line in sfsample.folded(profile, threads=True).splitlines():
        thread, *functions = line.rpartition(" ")[0].split(";")
        for function in {"alpha", "beta"} & {*functions}:
            yield thread.partition("/")[0], function
