"""Return addresses that earlier calls have left are no callers of a coroutine whose code has no table."""

import os

import pytest

import sfsample
from sfsample.core.stack import StopReason
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import record_samples
from tests.live.targets import wait_until_busy

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    needs_gcc,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
]

ENTRY = 'void verdict(void); void entry(void) { verdict(); __asm__ volatile(""); }'
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define KEEP __attribute__((noinline, noclone))
static volatile long turns;
KEEP void verdict(void) { for (;;) turns++; }
KEEP long deep(int n);
static long (*volatile pointer)(int) = deep;
KEEP long deep(int n)
{
    char pad[64];
    memset(pad, n, 64);
    __asm__ volatile("" :: "r"(pad) : "memory");
    if (!n) return turns;
    long result = DEEP(n - 1) + pad[3];
    __asm__ volatile("" : "+r"(result));
    return result;
}
KEEP void fills(void) { deep(60); }
void entry(void);
void runs_on(char *top, void (*function)(void));
_Noreturn void ends_on(char *top, void (*function)(void));
__asm__(".text\nruns_on: push %rbp\n mov %rsp,%rbp\n mov %rdi,%rsp\n call *%rsi\n leave\n ret\n"
        "ends_on: mov %rdi,%rsp\n xor %ebp,%ebp\n jmp *%rsi\n");
int main(void)
{
    char *top = (char *)aligned_alloc(4096, 1 << 20) + (1 << 20) - 64;
    runs_on(top, fills);
    puts("ready"); fflush(stdout);
    ends_on(top - atoi(getenv("OFFSET")), entry);
}
"""


@pytest.mark.parametrize("call", ["deep", "pointer"])
def test_leftover_return_addresses_are_no_callers(tmp_path, call):
    """Frames of `deep` are 80 to 112 bytes long: one of these coroutines begins at one's return address.

    A call through a pointer may lead anywhere, so the leftover counts as a caller then.  But the stack is not
    whole: it ends in `runs_on`, whose frame is on another stack.
    """
    flags = ("-fno-asynchronous-unwind-tables", "-fno-exceptions")
    entry = compile_c(tmp_path, "entry.o", ENTRY, "-O2", "-c", *flags)
    linked = (f"-DDEEP={call}", "-x", "none", str(entry))
    program = compile_c(tmp_path, "leftover", PROGRAM, *flags, *linked)
    for offset in range(4104, 4216, 16):
        with started(program, wrapper=("env", f"OFFSET={offset}")) as process:
            wait_until_busy(process.pid)
            profile = record_samples(process.pid, 5, mode="cpu")
        assert StopReason.OUTERMOST not in profile.stats.stacks
        lines = [line.rpartition(" ")[0].split(";") for line in sfsample.folded(profile).splitlines()]
        assert all(line[-2:] == ["entry", "verdict"] for line in lines)
        assert call == "pointer" or all("deep" not in line for line in lines)
