"""Threads that are given the id of one that has just ended keep their names, and their functions.

Law: the program chooses the id itself; each of its threads has the name of the function in which it works.
"""

import os

import pytest

import sfsample
from sfsample.recording.profile import Profile
from tests.live.targets import HANG_S, assert_untraced, wait_until
from tests.live.test_breakers import compile_c, needs_gcc, started

LAST = "/proc/sys/kernel/ns_last_pid"
# two of three are of the one sort; they live for some ticks of the clock that start times are told by
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
    int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY), turn = 0, told = 0;
    char text[16];
    sprintf(text, "%d", getpid() + 100);
    for (;; turn++) {
        pthread_t thread;
        if (pwrite(last, text, strlen(text), 0) < 0) return 1;
        if (pthread_create(&thread, 0, work, turn % 3 ? 0 : (void *)text)) return 1;
        pthread_join(thread, 0);
        if (again > 5 && !told++) { puts("ready"); fflush(stdout); }
    }
}
"""


@pytest.mark.live
@needs_gcc
@pytest.mark.skipif(not os.access(LAST, os.W_OK), reason=f"may not write {LAST}")
@pytest.mark.parametrize(
    "how", [{"perf_events": True}, {"perf_events": False}, {"mode": "wall"}], ids=["timers", "stops", "wall"]
)
def test_a_thread_has_its_own_name_though_others_had_its_id(tmp_path, how):
    seen = set()
    with started(compile_c(tmp_path, "turns", TURNS, "-pthread")) as process:
        # of a busy machine's threads many looks see few
        wait_until(lambda: {"alpha", "beta"} <= {name for name, _ in seen}
                   or seen.update(names_and_functions(process.pid, how)), "both were seen")  # fmt: skip
        assert_untraced(process.pid)
    seen -= {("turns", "alpha"), ("turns", "beta")}  # was asked for its name just before it was given one
    assert seen == {("alpha", "alpha"), ("beta", "beta")}


def names_and_functions(pid, how):
    """Record some samples; yield each thread's name and what it worked in."""
    profile = Profile(200)
    sfsample.record(pid, HANG_S, rate=200, profile=profile,
                    should_stop=lambda: profile.stats.samples > 200, **how)  # fmt: skip
    for line in sfsample.folded(profile, threads=True).splitlines():
        thread, *functions = line.rpartition(" ")[0].split(";")
        for function in {"alpha", "beta"} & {*functions}:
            yield thread.partition("/")[0], function
