"""Programs whose only unwind tables are in a separate debug file have the same stacks as in gdb.

The program is built without `.eh_frame`, and its debug sections are moved to another file as distributions
do. Without the debug file sfsample finds the frames by code analysis, as `found` says.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import Found, StopReason
from sfsample.dumping.core import dump_core
from sfsample.dumping.options import DumpOptions
from sfsample.formats.elf.image import ElfImage
from sfsample.process.image_cache import ImageCache
from sfsample.process.process import LiveProcess
from sfsample.unwind.unwinder import Unwinder
from tests.live.recording import captured, dumped
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


def by_build_id(program: Path, debug: Path) -> tuple[str, ...]:
    """Move the debug file to its place by build-id; return the debug directories."""
    build_id = ElfImage(program.read_bytes(), "").build_id
    assert build_id
    place = program.parent / "debug" / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
    place.parent.mkdir(parents=True)
    debug.rename(place)
    return (str(program.parent / "debug"),)


def by_link(program: Path, debug: Path) -> tuple[str, ...]:
    """Add a debug link to the program; return no directories."""
    subprocess.run(["objcopy", f"--add-gnu-debuglink={debug}", program], check=True)
    return ()


@pytest.fixture(params=[by_build_id, by_link], ids=["build-id", "link"])
def built(request, tmp_path):
    """Return the program and the directories of its debug file."""
    program, debug = tmp_path / "program", tmp_path / "program.debug"
    flags = ["-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer"]
    build_id = "-Wl,--build-id" if request.param is by_build_id else "-Wl,--build-id=none"
    subprocess.run(
        ["gcc", "-x", "c", "-", "-o", program, build_id, *flags], input=PROGRAM, text=True, check=True
    )
    subprocess.run(["objcopy", "--only-keep-debug", program, debug], check=True)
    subprocess.run(["objcopy", "--strip-all", program], check=True)
    return program, request.param(program, debug)


def gdb(program: Path, core: Path, directories: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return the address and the function of every frame up to main."""
    where = ":".join(directories) or "/nowhere"
    words = ["gdb", "-nx", "-batch", "-iex", f"set debug-file-directory {where}",
             "-ex", "info registers rip", "-ex", "bt -frame-arguments none", program, core]  # fmt: skip
    printed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    [innermost] = re.findall(r"^rip +0x([0-9a-f]+)", printed, re.MULTILINE)
    callers = re.findall(r"^#[1-9]\d* +0x([0-9a-f]+) in (\w+)", printed, re.MULTILINE)
    return [(int(innermost, 16), FUNCTIONS[0]), *((int(pc, 16), name) for pc, name in callers)]


def assert_by_debug_frame(stack) -> None:
    assert stack.stop_reason is StopReason.OUTERMOST
    found = [frame.found for frame in stack.frames]
    assert found[1 : len(FUNCTIONS)] == [Found.DEBUG_FRAME] * (len(FUNCTIONS) - 1)


def test_live_process_and_core_file(built, tmp_path):
    program, directories = built
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        wait_until_busy(target.pid)
        process = LiveProcess(target.pid, image_cache=ImageCache(directories))
        try:
            snapshot = captured(process)
            stack = Unwinder(process.modules).walk(snapshot)
        finally:
            process.close()
        subprocess.run(["gcore", "-o", tmp_path / "core", str(target.pid)], check=True, capture_output=True)
        dump = dumped(target.pid, DumpOptions(debug_dirs=directories))
        target.assert_unharmed()
    core = tmp_path / f"core.{target.pid}"
    of_core = dump_core(str(core), how=DumpOptions(debug_dirs=directories)).threads[0].stack
    for each in (stack, dump.threads[0].stack, of_core):
        assert_by_debug_frame(each)
    by_gdb = gdb(program, core, directories)
    assert [name for _, name in by_gdb] == FUNCTIONS
    assert [frame.pc for frame in of_core.frames[: len(by_gdb)]] == [pc for pc, _ in by_gdb]


def test_debug_file_of_another_build_is_not_used(built):
    program, directories = built
    [debug] = [*program.parent.glob("program.debug"), *program.parent.glob("debug/.build-id/*/*.debug")]
    debug.write_bytes(debug.read_bytes() + b"\0")  # another checksum
    if directories:
        build_id = bytes.fromhex(ElfImage(debug.read_bytes(), "").build_id or "")
        debug.write_bytes(debug.read_bytes().replace(build_id, build_id[::-1]))
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        wait_until_busy(target.pid)
        dump = dumped(target.pid, DumpOptions(debug_dirs=directories))
        target.assert_unharmed()
    stack = dump.threads[0].stack
    assert Found.DEBUG_FRAME not in [frame.found for frame in stack.frames]
    assert any("a debug file is not the one of this module" in problem for problem in dump.problems)
