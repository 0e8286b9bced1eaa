"""Libraries that are mapped from inside an archive, as Android's loader does, have whole stacks.

The host maps the segments itself; its chain of calls is known.
"""

import shutil
import subprocess
import zipfile

import pytest

import sfsample
from sfsample.core.stack import Found, StopReason
from sfsample.dumping.run import dump_core
from sfsample.errors import SfsampleError
from sfsample.formats.elf.image import SHT_SYMTAB, ElfImage
from sfsample.process.process import LiveProcess
from sfsample.saved_stacks.format import from_json, save, to_json
from sfsample.saved_stacks.replay import replay
from sfsample.unwind.unwinder import ALWAYS, Unwinder
from tests.builders.symbol_tables import SymbolTable
from tests.live.compiled import compile_c, needs_gcc
from tests.live.recording import captured, dumped, record_samples
from tests.live.targets import started, wait_until_busy
from tests.live.test_modules import module_problems

pytestmark = [pytest.mark.live, needs_gcc]

LIBRARY = """
__attribute__((noinline)) static void inner(volatile long *n, long m) { for (;;) *n += m; }
__attribute__((noinline)) void NAME(volatile long *n, void (*next)(volatile long *, void *), long m)
{
    volatile long room[SIZE];
    room[1] = m;
    if (next) next(n, 0);
    else inner(n, room[1]);
    __asm__ volatile("");
}
"""
HOST = r"""
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
typedef void (*entry)(volatile long *, void *, long);
static long fd, at[2], vaddr[2];
static volatile long turns;
static entry mapped(long at, long vaddr)
{
    static char head[4096];
    Elf64_Ehdr *file = (void *)head;
    pread(fd, head, sizeof head, at);
    char *base = mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < file->e_phnum; i++) {
        Elf64_Phdr *one = (Elf64_Phdr *)(head + file->e_phoff) + i;
        int modes = (one->p_flags & 4 ? PROT_READ : 0) | (one->p_flags & 1 ? PROT_EXEC : 0);
        if (one->p_type == PT_LOAD && !(one->p_flags & 2))
            mmap(base + (one->p_vaddr & -4096), one->p_filesz + one->p_vaddr % 4096, modes,
                 MAP_PRIVATE | MAP_FIXED, fd, at + (one->p_offset & -4096));
    }
    return (entry)(base + vaddr);
}
static entry second;
__attribute__((noinline)) static void between(volatile long *n, void *unused)
{
    second(n, unused, 1);
    __asm__ volatile("");
}
int main(int count, char **words)
{
    fd = open(words[2], O_RDONLY);
    entry first = mapped(atol(words[3]), atol(words[4]));
    second = mapped(atol(words[5]), atol(words[6]));
    dprintf(atoi(words[1]), "ready %d\n", getpid());
    first(&turns, (void *)between, 2);
    return count;
}
"""


@pytest.fixture
def packed(tmp_path):
    """Return the host, an archive of two libraries, and for each its offset and its function's vaddr."""
    archive, places = tmp_path / "both.zip", []
    with zipfile.ZipFile(archive, "w") as packing:
        for name, size in (("first", "10"), ("second", "30")):
            source = LIBRARY.replace("NAME", name).replace("SIZE", size)
            flags = ("-shared", "-fPIC", "-nostdlib", "-fno-stack-protector", "-Wl,--build-id")
            data = compile_c(tmp_path, f"{name}.so", source, *flags).read_bytes()
            here = packing.fp.tell() + 30 + len(name)  # a local header is 30 bytes and the name
            entry = zipfile.ZipInfo(name)
            entry.extra = bytes(-here % 4096)
            packing.writestr(entry, data)
            image = ElfImage(data, name)
            table = SymbolTable(*image.symbols(SHT_SYMTAB), image.byteorder, image.code_sections)
            found = (table.find(v) for low, high in image.code_sections for v in range(low, high))
            places += [here + len(entry.extra), next(one.start for one in found if one and one.name == name)]
    return compile_c(tmp_path, "host", HOST), archive, places


CHAIN = ["inner", "second", "between", "first", "main"]


def test_two_libraries_in_an_archive(packed, tmp_path):
    host, archive, places = packed
    with started([str(host), "{fd}", str(archive), *map(str, places)]) as target:
        target.await_ready()
        wait_until_busy(target.pid)
        profile = record_samples(target.pid, 10)
        dump = dumped(target.pid)
        process = LiveProcess(target.pid)
        try:
            snapshot = captured(process)
            saved = save("host", snapshot, Unwinder(process.modules, ALWAYS).walk(snapshot), process.modules)
        finally:
            process.close()
        if shutil.which("gcore"):
            subprocess.run(
                ["gcore", "-o", tmp_path / "core", str(target.pid)], check=True, capture_output=True
            )
        target.assert_unharmed()
    assert not module_problems(profile)
    names = [line.rpartition(" ")[0].split(";") for line in sfsample.folded(profile).splitlines()]
    assert all(line[-len(CHAIN) :] == CHAIN[::-1] for line in names)
    stack = dump.threads[0].stack
    assert stack.stop_reason is StopReason.OUTERMOST
    assert {frame.found for frame in stack.frames[1:5]} == {Found.EH_FRAME}
    assert replay(from_json(to_json(saved))).stack.frames[1:] == stack.frames[1:]
    for core in tmp_path.glob("core.*"):
        assert dump_core(str(core)).threads[0].stack.frames[1:] == stack.frames[1:]
    archive.write_bytes(archive.read_bytes()[:4096])
    with pytest.raises(SfsampleError, match=r"is not the one that was mapped: nothing is at 0x[1-9]000"):
        replay(saved)
