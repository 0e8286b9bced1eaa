"""A table that says too early that there is no caller: we end where gdb and eu-stack end.

Law: what a table says of the end is a fact, not a guess that the next stepper may better: hand-written code
marks its outermost functions so, and above them may lie anything.
"""

import re
import shutil
import subprocess

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import StopReason
from tests.live.recording import dumped, record_samples
from tests.live.targets import ARCH, started

TOOLS = ("gcc", "gdb", "eu-stack")
pytestmark = [
    pytest.mark.live,
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


def said_by(*words: object) -> list[str]:
    """Return the functions in what a program prints of a stack."""
    said = subprocess.run(list(map(str, words)), check=False, capture_output=True, text=True).stdout
    return re.findall(r"^#\d+ .*?(?:in )?\b(inner|middle|outer|main)\b", said, re.MULTILINE)


def test_the_end_that_a_table_tells(tmp_path):
    program = tmp_path / "program"
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", program], input=PROGRAM, text=True, check=True)
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        profile = record_samples(target.pid, 10)
        dump = dumped(target.pid)
        gdb = said_by("gdb", "-nx", "-batch", "-p", target.pid, "-ex", "bt")
        eu_stack = said_by("eu-stack", "-p", target.pid)
        target.assert_unharmed()
    stack = dump.threads[0].stack
    assert len(stack.frames) == 2
    assert stack.stop_reason is StopReason.OUTERMOST
    assert gdb == eu_stack == ["inner", "middle"]
    assert set(profile.stats.stacks) == {StopReason.OUTERMOST}
