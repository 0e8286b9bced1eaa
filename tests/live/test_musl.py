"""Stacks through musl, which has no unwind tables, are whole, also below a handler on an alternate stack."""

import platform
import shutil
import subprocess

import pytest

import sfsample
from sfsample.core.stack import Found, StopReason
from sfsample.recording.profile import Profile
from tests.live.hanging import wait_for_calls
from tests.live.recording import record_samples
from tests.live.targets import started, wait_until_busy

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="sfsample analyses x86-64 code only"),
    pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="no musl-gcc to build the target with"),
]

PROGRAM = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static volatile long turns;
static int numbers[500];
FUNCTION int order(const void *a, const void *b) { turns++; return *(const int *)a - *(const int *)b; }
FUNCTION void sorts(void)
{
    for (int i = 0; i < 500; i++) numbers[i] = i * 7919 % 500;
    qsort(numbers, 500, sizeof numbers[0], order);
    turns++;
}
FUNCTION void prints(void)
{
    char text[200];
    snprintf(text, sizeof text, "%.17g %s", turns / 3.0, "words");
    turns += strlen(text);
}
FUNCTION void drop(void *block)
{
    turns++;
    free(block); /* a tail call through the PLT */
}
FUNCTION void drops(void)
{
    for (int i = 0; i < 200; i++) drop(malloc(200000)); /* free calls munmap */
    turns++;
}
FUNCTION void handles(int number)
{
    for (long i = 0; i < 1000000; i++) turns += number != 0;
}
FUNCTION void raises(void)
{
    raise(SIGUSR1);
    turns++;
}
FUNCTION void *work(void *unused)
{
    static char other_stack[65536];
    stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action = {.sa_handler = handles, .sa_flags = SA_ONSTACK};
    sigaltstack(&other, 0);
    sigaction(SIGUSR1, &action, 0);
    printf("ready %d\\n", getpid()); fflush(stdout);
    for (;;) {
        raises();
        drops();
        for (int i = 0; i < 10; i++) sorts();
        for (int i = 0; i < 1500; i++) prints();
    }
    return unused;
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    pthread_join(thread, 0);
    return turns == 0;
}
"""
SAMPLES = 300
WORKING = 30  # samples of the thread that works; the other one sleeps


def works(profile: Profile) -> bool:
    """Whether the thread that works has enough samples."""
    return sum(count for key, count in profile.counts.items() if key.tid != key.process_key) >= WORKING


@pytest.mark.parametrize("flags", [(), ("-static",)], ids=["dynamic", "static"])
def test_every_stack_is_whole(tmp_path, flags):
    program = tmp_path / "musl"
    command = ["musl-gcc", "-O2", "-x", "c", "-", "-o", program, *flags]
    subprocess.run(command, input=PROGRAM, text=True, check=True)
    with started([str(program)]) as target:
        wait_until_busy(target.pid)
        profile = record_samples(target.pid, SAMPLES, mode="wall", until=works)
        target.assert_unharmed()
    assert set(profile.stats.stacks) == {StopReason.OUTERMOST}
    assert profile.stats.frames[Found.CODE] > SAMPLES
    lines = [line.rpartition(" ")[0].split(";")[1:] for line in sfsample.folded(profile).splitlines()]
    assert {line[2] for line in lines} == {
        "main",
        "work",
    }  # called by the two functions in which stacks begin
    working = [line[3:] for line in lines if line[2] == "work"]
    assert {line[0] for line in working if line} == {"sorts", "prints", "raises", "drops"}
    assert all(line[0] == "sorts" for line in working if line[-1:] == ["order"])
    if flags:  # it has a symbol table
        assert {tuple(line[:2]) for line in lines} == {
            ("_start", "libc_start_main_stage2"),
            ("__clone", "start"),
        }
        assert {line[1] for line in working if line[-1:] == ["order"]} <= {"qsort_r"}


WAITS = """
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
int main(void)
{
    pthread_mutex_lock(&lock);
    printf("ready %d\\n", getpid()); fflush(stdout);
    for (;;) pthread_cond_wait(&never, &lock);
}
"""


@pytest.mark.parametrize("flags", [(), ("-static",)], ids=["dynamic", "static"])
def test_condition_variable_is_no_mutex(tmp_path, flags):
    program = tmp_path / "musl"
    subprocess.run(["musl-gcc", "-x", "c", "-", "-o", program, *flags], input=WAITS, text=True, check=True)
    with started([str(program)]) as target:
        wait_for_calls(target.pid, futex=1)
        profile = record_samples(target.pid, 10, mode="wall", waits=True)
        target.assert_unharmed()
    assert {frame.text for frame in sfsample.named(profile).frames if frame.kind == "w"} == {"[futex]"}
