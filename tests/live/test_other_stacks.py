"""Stacks of threads that changed to another stack themselves are whole.

Split stacks, and libraries that give deep recursion its own stack (Rust's `stacker`), switch in a function
with a table, so a copy of all the stacks is enough.  Stacks of fibers begin as those of Boost.Context do.
"""

import os

import pytest

from sfsample.core.stack import StopReason
from sfsample.recording.profile import Profile
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import record_samples
from tests.live.targets import states, wait_until, wait_until_busy

pytestmark = [
    pytest.mark.live,
    needs_gcc,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
]

NESTED = """
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#define KEEP __attribute__((noinline, noclone))
void on_stack(void (*function)(int), int argument, char *top);
__asm__(".text\\n.type on_stack, @function\\non_stack: .cfi_startproc\\n"
        "  push %rbp\\n .cfi_def_cfa_offset 16\\n .cfi_offset rbp, -16\\n"
        "  mov %rsp, %rbp\\n .cfi_def_cfa_register rbp\\n"
        "  mov %rdi, %rax\\n  mov %esi, %edi\\n  mov %rdx, %rsp\\n  call *%rax\\n"
        "  leave\\n .cfi_def_cfa rsp, 8\\n  ret\\n.cfi_endproc\\n.size on_stack, .-on_stack\\n");
static int asleep;
KEEP void innermost(void)
{
    puts("ready"); fflush(stdout);
    if (asleep) for (;;) pause();
    for (volatile long i = 0;; i++) {}
}
KEEP void deeper(int n);
KEEP void on_another(int n)
{
    char *low = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(low, 4096, PROT_NONE);
    on_stack(deeper, n - 1, low + 65536);
    __asm__ volatile("");
}
KEEP void deeper(int n)
{
    if (n) on_another(n); else innermost();
    __asm__ volatile("");
}
int main(void)
{
    asleep = STATE;
    deeper(COUNT);
    __asm__ volatile("");
}
"""


def recorded(directory, stacks: int, *, asleep: bool) -> Profile:
    source = NESTED.replace("COUNT", str(stacks)).replace("STATE", str(int(asleep)))
    with started(compile_c(directory, "nested", source)) as process:
        if asleep:
            wait_until(lambda: states(process.pid) == {"S"}, "asleep")
        return record_samples(process.pid, mode="wall" if asleep else "cpu")


@pytest.mark.parametrize("asleep", [False, True], ids=["runs", "sleeps"])
@pytest.mark.parametrize("stacks", [1, 3, 6])
def test_chain_over_several_stacks_is_whole(tmp_path, stacks, asleep):
    profile = recorded(tmp_path, stacks, asleep=asleep)

    assert profile.stats.stacks == {StopReason.OUTERMOST: profile.stats.samples}
    for key in profile.counts:
        depth = sum(
            place.module is not None and place.module.path.endswith("/nested") for place in key.locations
        )
        assert depth == 3 * stacks + 4  # _start, main, deeper; on_another, on_stack, deeper; innermost


def test_stack_ends_where_too_many_stacks_were_used(tmp_path):
    """sfsample does not stop the thread repeatedly for the missing ones."""
    stats = recorded(tmp_path, 20, asleep=False).stats

    assert stats.stacks == {StopReason.BAD_MEMORY: stats.samples}
    assert stats.pauses.count - stats.waiting_for_cpu <= stats.samples + 6


FIBER = """
#include <stdio.h>
#define KEEP __attribute__((noinline, noclone))
static char stack[65536] __attribute__((aligned(16)));
_Noreturn void begin(void (*function)(void), char *top);
__asm__(".text\\n.type begin, @function\\nbegin:\\n"
        "  mov %rdi, %rbx\\n  lea 2f(%rip), %rbp\\n  mov %rsi, %rsp\\n  jmp 1f\\n"
        "1: push %rbp\\n  jmp *%rbx\\n"
        "2: xor %rdi, %rdi\\n  call _exit@PLT\\n  hlt\\n.size begin, .-begin\\n");
KEEP void innermost(void)
{
    puts("ready"); fflush(stdout);
    for (volatile long i = 0;; i++) {}
}
KEEP void fiber(void)
{
    innermost();
    __asm__ volatile("");
}
int main(void)
{
    begin(fiber, stack + sizeof stack);
}
"""


def test_stack_of_a_fiber_is_whole(tmp_path):
    """`begin` has no table; its function returns to an address that was pushed without a call."""
    with started(compile_c(tmp_path, "fiber", FIBER)) as process:
        wait_until_busy(process.pid)
        profile = record_samples(process.pid, mode="cpu")

    assert profile.stats.stacks == {StopReason.OUTERMOST: profile.stats.samples}
    assert {len(key.locations) for key in profile.counts} == {3}  # begin, fiber, innermost
