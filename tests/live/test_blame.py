"""`--blame` charges waiting to the holder of the lock, in programs whose answer is known."""

from collections import Counter
from math import sqrt
from pathlib import Path

import pytest

import sfsample
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.hanging import wait_for_calls
from tests.live.recording import record_samples
from tests.live.targets import assert_untraced, first_line, python

pytestmark = [pytest.mark.live, needs_gcc]
HEAD = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t a = PTHREAD_MUTEX_INITIALIZER, b = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t c = PTHREAD_MUTEX_INITIALIZER, d = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int ends[2], go[2];
static char byte;
static void say(void) { write(ends[1], "x", 1); }
static void hear(void) { read(ends[0], &byte, 1); }
static void start(void *(*work)(void *), const char *name)
{
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_setname_np(thread, name);
}
"""
# first holds a; second holds b and waits for a; third waits for b; one and two wait for each other
CHAINS = (
    HEAD
    + r"""
static void *first(void *p) { pthread_mutex_lock(&a); say(); for (;;) sleep(1000); }
static void *second(void *p) { pthread_mutex_lock(&b); say(); pthread_mutex_lock(&a); return 0; }
static void *third(void *p) { pthread_mutex_lock(&b); return 0; }
static void *one(void *p)
{
    pthread_mutex_lock(&c); say();
    read(go[0], &byte, 1); pthread_mutex_lock(&d);
    return 0;
}
static void *two(void *p) { pthread_mutex_lock(&d); say(); pthread_mutex_lock(&c); return 0; }
static void *signalled(void *p) { pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER; pthread_mutex_lock(&own);
                                  for (;;) pthread_cond_wait(&never, &own); }
int main(void)
{
    pipe(ends); pipe(go);
    start(first, "first"); hear();
    start(second, "second"); hear();
    start(third, "third"); start(signalled, "signalled");
    start(one, "one"); hear();
    start(two, "two"); hear(); write(go[1], "x", 1);
    puts("ready"); fflush(stdout);
    for (;;) pause();
}
"""
)
# the main thread holds the lock for three times as long in `slow` as in `quick`
SHARES = (
    HEAD
    + r"""
static volatile int spent;
static void nap(int ms) { struct timespec t = {0, ms * 1000000}; nanosleep(&t, 0); spent++; }
static void __attribute__((noinline)) slow(void) { nap(30); spent++; }
static void __attribute__((noinline)) quick(void) { nap(10); spent++; }
static void *waiter(void *p) { for (;;) { pthread_mutex_lock(&a); pthread_mutex_unlock(&a); } }
int main(void)
{
    pthread_mutex_lock(&a);
    start(waiter, "waiter"); start(waiter, "waiter");
    puts("ready"); fflush(stdout);
    for (;;) {
        slow(); pthread_mutex_unlock(&a); pthread_mutex_lock(&a);
        quick(); pthread_mutex_unlock(&a); pthread_mutex_lock(&a);
    }
}
"""
)


def stacks(profile: sfsample.Profile) -> dict[str, Counter[str]]:
    """Return what each thread waits for, and the holder: "[mutex a] > [held by]b"."""
    report = sfsample.named(profile)
    found: dict[str, Counter[str]] = {}
    for stack in report.stacks:
        texts = [report.frames[at].text for at in reversed(stack.frames)]
        shown = " > ".join(text for text in texts if text.startswith("["))
        found.setdefault(report.threads[stack.thread].name, Counter())[shown] += stack.weights[0]
    return found


def test_chains_and_cycles_are_followed(tmp_path: Path) -> None:
    with started(compile_c(tmp_path, "chains", CHAINS, "-pthread", "-g")) as process:
        wait_for_calls(process.pid, futex=5, clock_nanosleep=1, pause=1)
        found = stacks(record_samples(process.pid, 400, rate=200, mode="wall", waits=True, blame=True))
        assert {name: [*counts] for name, counts in found.items() if name != "chains"} == {
            "first": ["[sleep]"],
            "second": ["[mutex a] > [held by]first > [sleep]"],
            "third": ["[mutex b] > [held by]second > [mutex a] > [held by]first > [sleep]"],
            "signalled": ["[condition variable never]"],
            "one": ["[mutex d] > [held by]two > [mutex c] > [held by]one (a cycle)"],
            "two": ["[mutex c] > [held by]one > [mutex d] > [held by]two (a cycle)"],
        }
        assert_untraced(process.pid)


def test_shares_of_blame_are_those_of_the_time_that_the_lock_was_held(tmp_path: Path) -> None:
    with started(compile_c(tmp_path, "shares", SHARES, "-pthread", "-g")) as process:
        profile = record_samples(process.pid, 1200, rate=100, mode="wall", waits=True, blame=True)
        report = sfsample.named(profile)
        held: dict[str, Counter[str]] = {"waiter": Counter(), "main": Counter()}
        for stack in report.stacks:
            texts = [report.frames[at].text for at in stack.frames]
            function = next((text for text in texts if text in ("slow", "quick")), "")
            held["waiter" if "waiter" in texts else "main"][function] += stack.weights[0]
        blamed, own = (held[name]["slow"] / (held[name].total() - held[name][""]) for name in held)
        error = 4 * sqrt(0.75 * 0.25 / (held["main"].total() - held["main"][""]))
        assert held["waiter"]["slow"] > 0.4 * held["waiter"].total()
        assert abs(blamed - own) < error, "the waiters sleep as long as the holder holds the lock"
        assert report.stats.most_waiters["[mutex a]"] in (2, 3), "both waiters, sometimes the main thread"
        assert abs(own - 0.75) < error + 0.05, "a busy machine makes both naps longer by the same time"
        assert profile.stats.eintr_prone_stops == 0
        assert_untraced(process.pid)


# In each program the thread `wants` waits.  The last ones have no holder that anything proves.
OF_PYTHON = {
    "rlock": ("lock = threading.RLock()", "with lock: taken.set(); nap()", "with lock: pass"),
    "lock": ("lock = threading.Lock()", "with lock: taken.set(); nap()", "with lock: pass"),
    "lock, acquire": ("lock = threading.Lock()", "with lock: taken.set(); nap()", "lock.acquire()"),
    "lock, busy": ("lock = threading.Lock()", "with lock: taken.set(); spin()", "with lock: pass"),
    "future": ("pool = futures.ThreadPoolExecutor(1)", "taken.set(); nap()", "made[0].result()"),
    "by hand": ("lock = threading.Lock()", "lock.acquire(); taken.set(); nap()", "with lock: pass"),
    "condition": ("c = threading.Condition()", "taken.set(); nap()", "with c: c.wait()"),
    "queue": ("q = queue.Queue()", "taken.set(); nap()", "q.get()"),
}
PROGRAM = """
import queue, threading, time
from concurrent import futures
taken, made = threading.Event(), []
{0}
def nap(): time.sleep(1000)
def spin():
    while True: time.monotonic()
def holds():
    {1}
def wants():
    {2}
if "pool" in globals(): made.append(pool.submit(holds))
else: threading.Thread(target=holds, daemon=True).start()
taken.wait()
threading.Thread(target=wants, daemon=True).start()
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.any_load
@pytest.mark.parametrize("case", OF_PYTHON)
def test_the_holder_of_an_object_of_python_is_blamed_if_it_is_proven(case: str) -> None:
    has_holder = case not in ("by hand", "condition", "queue")
    with python(PROGRAM.format(*OF_PYTHON[case])) as process:
        assert first_line(process) == "ready"
        report = sfsample.named(
            record_samples(process.pid, 100, rate=200, mode="wall", waits=True, blame=True)
        )
        texts = [[report.frames[at].text for at in reversed(stack.frames)] for stack in report.stacks]
        blamed = [each for each in texts if any(text.startswith("[held by]") for text in each)]
        assert bool(blamed) is has_holder, texts
        for each in blamed:
            at = next(at for at, text in enumerate(each) if text.startswith("[held by]"))
            assert any(text.startswith("wants ") for text in each[:at])
            assert any(text.startswith(("holds ", "nap ")) for text in each[at + 1 :])
        assert_untraced(process.pid)
