"""Stacks of programs without unwind tables are whole, through `main` and a signal handler.

This holds also without section headers and with a static libc.
"""

import platform

import pytest

import sfsample
from sfsample.core.stack import Found, StopReason
from tests.live.compiled import compile_c, needs_gcc
from tests.live.recording import record_samples
from tests.live.targets import started
from tests.live.test_awkward_modules import without_section_headers

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="sfsample analyses x86-64 code only"),
    needs_gcc,
]

PROGRAM = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static volatile long turns;
FUNCTION long leaf(long n) { while (n--) turns++; return turns; }
FUNCTION long handled(long n) { return leaf(200000 + n) * n; }
FUNCTION void on_signal(int number) { turns += handled(number) + 1; }
FUNCTION long works(long n) { return leaf(200000 + n) + n; }
FUNCTION long raises(void) { return raise(SIGUSR1) + turns; }
int main(int count, char **words)
{
    signal(SIGUSR1, on_signal);
    dprintf(atoi(words[1]), "ready %d\\n", getpid());
    for (;;) { works(count); raises(); }
}
"""
BUILDS = {
    "Os": ("-Os",),
    "O2": ("-O2", "-fcf-protection=full", "-fstack-protector-all"),
    "static": ("-O2", "-static"),
}
CHAINS = {("main", "works", "leaf"), ("main", "raises", "on_signal", "handled", "leaf")}
FUNCTIONS = {name for chain in CHAINS for name in chain}


@pytest.mark.parametrize("build", BUILDS)
def test_every_stack_is_whole(tmp_path, build):
    untabled = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer")
    program = compile_c(tmp_path, "program", PROGRAM, *BUILDS[build], *untabled)
    if build == "static":
        without_section_headers(program)
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        profile = record_samples(target.pid, 100)
        target.assert_unharmed()
    assert set(profile.stats.stacks) == {StopReason.OUTERMOST}
    assert profile.stats.frames[Found.CODE] > 100
    assert profile.stats.frames[Found.SIGNAL_FRAME] > 0
    if build == "static":
        return  # it has no names
    stacks = [line.rpartition(" ")[0].split(";") for line in sfsample.folded(profile).splitlines()]
    assert all("main" in stack for stack in stacks)
    inner = {tuple(name for name in stack if name in FUNCTIONS) for stack in stacks if stack[-1] == "leaf"}
    assert inner == CHAINS
