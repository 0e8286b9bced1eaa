"""Code that changes its place, or whose place changes its code, while it is sampled.

Law: built from source here, so gcc is wanted; where there is none, the tests say so.  Every sample must be
the whole and true stack: a row, a module or a name that was kept too long shows.
"""

import pytest

import sfsample
from tests.live.recording import record_samples
from tests.live.test_breakers import HOST, compile_c, needs_gcc, started

pytestmark = [pytest.mark.live, needs_gcc]

# Both libraries have the same functions at the same addresses, with frames of different size.
PLUGIN = """
static volatile long n;
__attribute__((noinline)) void NAME_burn(void)
{
    volatile char frame[SIZE];
    for (long i = 0; i < 20000000; i++) n += frame[0] = 1;
}
void entry(void) { volatile char frame[SIZE]; frame[0] = 1; NAME_burn(); __asm__ volatile(""); }
"""


def test_a_row_does_not_outlive_its_library(tmp_path):
    for name, size in (("a", "24"), ("b", "100")):
        source = PLUGIN.replace("NAME", name).replace("SIZE", size)
        compile_c(tmp_path, f"{name}.so", source, "-shared", "-fPIC", "-fno-stack-protector")
    with started(compile_c(tmp_path, "host", HOST, "-ldl")) as process:
        try:
            profile = record_samples(process.pid, 150, rate=99)
        finally:
            process.kill()
    text = sfsample.folded(profile)
    counts = {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in text.splitlines())}
    tails = {tail: sum(n for stack, n in counts.items() if stack.endswith(tail))
             for tail in (";main;run_a;entry;a_burn", ";main;run_b;entry;b_burn")}  # fmt: skip
    assert all(tails.values()), text
    assert sum(tails.values()) > 0.9 * profile.stats.samples, text  # the rest is in dlopen and dlclose
    # not everything can be told: a stop in _init, which has no table, and a swap that goes unseen because the
    # check before the stop fell between dlclose and dlopen (0.6 % of 1,339 on a machine with a load of 15)
    assert profile.stats.stacks["outermost"] > 0.97 * profile.stats.samples, profile.stats.stacks


MOVED = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define KEEP __attribute__((noinline))
KEEP void inner(int n) { volatile char frame[300]; for (volatile long i = 0;; i++) frame[i % 300] = (char)n; }
KEEP void outer(int n)
{
    volatile char frame[100];
    frame[0] = (char)n;
    inner(n + frame[0]);
    __asm__ volatile("");
}
KEEP void move(void)
{
    unsigned long start = 0, end = 0, here = (unsigned long)move;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= here && here < end) break;
    void *copy = mmap(0, end - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, (void *)start, end - start);
    mprotect(copy, end - start, PROT_READ | PROT_EXEC);
    copy = mremap(copy, end - start, end - start, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)start);
    if (copy == MAP_FAILED) exit(1);
}
int main(void) { move(); puts("ready"); fflush(stdout); outer(1); }
"""


@pytest.mark.parametrize("flags", [["-pie", "-fPIE"], ["-no-pie", "-fno-pie"]])
def test_code_that_was_copied_to_anonymous_memory(tmp_path, flags):
    """Programs do it to have their code on huge pages (node --use-largepages): maps names no file there."""
    with started(compile_c(tmp_path, "moved", MOVED, *flags)) as process:
        try:
            profile = sfsample.record(process.pid, 1.0)
        finally:
            process.kill()
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    assert len(stacks) == 1
    assert stacks[0].startswith("moved;_start;")
    assert stacks[0].endswith(";main;outer;inner")
    assert profile.stats.stacks == {"outermost": profile.stats.samples}
