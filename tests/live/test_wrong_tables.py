"""sfsample ends a stack where the table says that there is no caller, as gdb and eu-stack do.

Hand-written code marks its outermost functions so, and their stack may hold anything above; so no other
stepper may go on from there.
"""

import re
import shutil
import subprocess

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import StopReason
from tests.live.compiled import compile_c
from tests.live.recording import dumped, record_samples
from tests.live.targets import ARCH, started

TOOLS = ("gcc", "gdb", "eu-stack")
pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"),
    pytest.mark.skipif(ARCH is not AMD64, reason="the program is x86-64's"),
]

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static volatile long turns;
FUNCTION long inner(long n) { for (;;) turns += n; }
FUNCTION long middle(long n)
{
    __asm__ volatile(".cfi_undefined rip");
    return inner(n) + n;
}
FUNCTION long outer(long n) { return middle(n) * n; }
int main(int count, char **words)
{
    dprintf(atoi(words[1]), "ready %d\n", getpid());
    return outer(count);
}
"""


def functions_printed_by(*words: object) -> list[str]:
    """Run a debugger; return the functions of the program in the stack that it prints."""
    printed = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True).stdout
    return re.findall(r"^#\d+ .*?(?:in )?\b(inner|middle|outer|main)\b", printed, re.MULTILINE)


def test_stack_ends_where_the_table_says(tmp_path):
    program = compile_c(tmp_path, "program", PROGRAM)
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        profile = record_samples(target.pid, 10)
        dump = dumped(target.pid)
        gdb = functions_printed_by("gdb", "-nx", "-batch", "-p", target.pid, "-ex", "bt")
        eu_stack = functions_printed_by("eu-stack", "-p", target.pid)
        target.assert_unharmed()
    stack = dump.threads[0].stack
    assert len(stack.frames) == 2
    assert stack.stop_reason is StopReason.OUTERMOST
    assert gdb == eu_stack == ["inner", "middle"]
    assert set(profile.stats.stacks) == {StopReason.OUTERMOST}
