"""A JIT compiler that reuses memory: each sample has the name of the function that was there at that time."""

import subprocess
from collections import Counter

import pytest

import sfsample
from sfsample.api import named
from sfsample.core.arch import AMD64
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.perf_recording import needs_timers
from tests.live.targets import ARCH, assert_untraced

pytestmark = [
    pytest.mark.live,
    needs_gcc,
    pytest.mark.skipif(ARCH is not AMD64, reason="machine code of x86-64"),
]

# Runs two functions at one address, each until it reads a byte, and removes its perf map before the end.
JIT = r"""
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3};
int main(void)
{
    char path[64];
    struct pollfd input = {.fd = 0, .events = POLLIN};
    void *place = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sprintf(path, "/tmp/perf-%d.map", getpid());
    memcpy(place, code, sizeof code);
    for (int i = 0; i < 3; i++) {
        FILE *map = fopen(path, "a");
        if (i < 2) fprintf(map, "%lx %zx %s", (long)place, sizeof code, i ? "second" : "first\n");
        fclose(map);
        if (i == 2) unlink(path);
        puts("ready"); fflush(stdout);
        do ((void (*)(long))place)(100000); while (!poll(&input, 1, 0));
        getchar();
    }
}
"""


@pytest.mark.parametrize("perf_events", [False, pytest.param(True, marks=needs_timers)])
def test_function_at_an_address_is_that_of_the_time(perf_events, tmp_path):
    rate = 99 if perf_events else 400  # samples of timers are named when the ring is read, twice a second
    program, profile, at_switch = (
        compile_c(tmp_path, "jit", JIT, "-fno-plt"),
        sfsample.Profile(rate),
        list[int](),
    )
    with started(program, stdin=subprocess.PIPE) as target:
        assert target.stdin is not None
        assert target.stdout is not None
        stdin, stdout = target.stdin, target.stdout

        def should_stop() -> bool:
            if profile.stats.samples < 100 * (len(at_switch) + 1):
                return False
            at_switch.append(profile.stats.samples)
            if len(at_switch) < 3:
                stdin.write(b"\n")
                stdin.flush()
                assert stdout.readline() == b"ready\n"
            return len(at_switch) == 3

        options = sfsample.RecordOptions(rate=rate, perf_events=perf_events, kernel=False)
        sfsample.record(target.pid, None, options, profile=profile, should_stop=should_stop)
        assert_untraced(target.pid)
    report = named(profile)
    counts = Counter[str | None]()
    for stack in report.stacks:
        functions = {report.frames[at].function for at in stack.frames}
        counts.update(dict.fromkeys(functions, stack.weights[0]))
    first, second = counts["first"], counts["second"]
    assert 0 < first <= at_switch[0]
    assert 0 < second <= at_switch[2] - at_switch[0]
    if not perf_events:  # samples of timers wait in a ring, and what changes meanwhile is not named
        assert None not in counts
        innermost = {report.frames[stack.frames[0]].function for stack in report.stacks}
        assert innermost <= {"first", "second", "main", "poll", "__poll"}
