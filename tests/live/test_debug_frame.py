"""Programs without `.eh_frame` have the same stacks as in gdb.

`.debug_frame` has the tables of such a program.  If it is in a separate debug file, gdb reads it there;
sfsample finds the frames by code analysis, as `found` says.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import Found, StopReason
from sfsample.dumping.core import dump_core
from tests.live.recording import dumped
from tests.live.targets import ARCH, started, wait_until_busy

TOOLS = ("gcc", "objcopy", "gdb", "gcore")
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(any(shutil.which(tool) is None for tool in TOOLS), reason=f"needs {', '.join(TOOLS)}"),
    pytest.mark.skipif(ARCH is not AMD64, reason="AArch64 and s390x have .eh_frame whatever the flags"),
]

PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
static volatile long turns;
FUNCTION long inner(long depth) { for (;;) turns += depth; }
FUNCTION long outer(long depth, long one, long two)
{
    volatile long room[32] = { one, two };
    return (depth ? outer(depth - 1, two, one) : inner(two)) + room[turns & 31] + one * two;
}
int main(int count, char **words)
{
    dprintf(atoi(words[1]), "ready %d\n", getpid());
    return outer(5, count, 7);
}
"""
FUNCTIONS = ["inner", *["outer"] * 6, "main"]


@pytest.fixture(params=[Found.DEBUG_FRAME, Found.CODE], ids=["in the program", "in a debug file"])
def built(request, tmp_path):
    """Return the program, and how its frames are found."""
    program, debug = tmp_path / "program", tmp_path / "program.debug"
    flags = ["-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"]
    subprocess.run(["gcc", "-x", "c", "-", "-o", program, *flags], input=PROGRAM, text=True, check=True)
    if request.param is Found.CODE:
        subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
        subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", program], check=True)
    return program, request.param


def gdb(program: Path, core: Path) -> list[tuple[int, str]]:
    """Return the address and the function of every frame up to main."""
    words = ["gdb", "-nx", "-batch", "-ex", "info registers rip", "-ex", "bt -frame-arguments none"]
    words += [program, core]
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    [innermost] = re.findall(r"^rip +0x([0-9a-f]+)", printed, re.MULTILINE)
    callers = re.findall(r"^#[1-9]\d* +0x([0-9a-f]+) in (\w+)", printed, re.MULTILINE)
    return [(int(innermost, 16), FUNCTIONS[0]), *((int(pc, 16), name) for pc, name in callers)]


def test_live_process_and_core_file(built, tmp_path):
    program, found = built
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        wait_until_busy(target.pid)
        subprocess.run(["gcore", "-o", tmp_path / "core", str(target.pid)], check=True, capture_output=True)
        of_process = dumped(target.pid).threads[0].stack
        target.assert_unharmed()
    core = tmp_path / f"core.{target.pid}"
    of_core = dump_core(str(core)).threads[0].stack
    for stack in (of_process, of_core):
        assert stack.stop_reason is StopReason.OUTERMOST
        assert [f.found for f in stack.frames][1 : len(FUNCTIONS)] == [found] * (len(FUNCTIONS) - 1)
    by_gdb = gdb(program, core)
    assert [name for _, name in by_gdb] == FUNCTIONS
    assert [frame.pc for frame in of_core.frames[: len(by_gdb)]] == [pc for pc, _ in by_gdb]
