"""Every stack is whole and true while code moves, or other code comes to its place.

The programs are compiled here, so the tests need gcc.  A row, a module or a name that sfsample keeps too long
gives a wrong stack.
"""

import re
import subprocess

import pytest

import sfsample
from sfsample.errors import FormatError
from sfsample.process.image_cache import ImageCache
from sfsample.process.image_opener import ImageOpener
from sfsample.process.procfs import ProcFs
from sfsample.recording.profile import Profile
from tests.live.compiled import HOST, LOOP_TURNS, compile_c, needs_gcc, started
from tests.live.recording import fewer, record_samples
from tests.live.targets import wait_until_busy

pytestmark = [pytest.mark.live, needs_gcc]

# Both libraries have the same functions at the same addresses, with frames of different size.
PLUGIN = """
static volatile long n;
__attribute__((noinline)) void NAME_burn(void)
{
    volatile char frame[SIZE];
    for (long i = 0; i < TURNS; i++) n += frame[0] = 1;
}
void entry(void) { volatile char frame[SIZE]; frame[0] = 1; NAME_burn(); __asm__ volatile(""); }
""".replace("TURNS", str(LOOP_TURNS))


# gcc's crtbegin.o and crti.o have no tables
UNTABLED = r"(_init|_fini|frame_dummy|(de)?register_tm_clones|__do_global_dtors_aux)"
IN_LIBRARY = re.compile(r";main;run_(a|b);entry(;\1_burn)?$")


def in_both(profile: Profile) -> bool:
    """Whether each of the two libraries has samples."""
    places = {place for key in profile.counts for place in key.locations}
    return {"a.so", "b.so"} <= {place.module.path.rpartition("/")[2] for place in places if place.module}


SMALL_PLUGIN = f"""
static volatile long n;
__attribute__((noinline)) void NAME_burn(void) {{ for (long i = 0; i < {LOOP_TURNS}; i++) n++; }}
void entry(void) {{ NAME_burn(); __asm__ volatile(""); }}
"""


# Each library works for tens of milliseconds; two swaps within one sample (a millisecond) would go unnoticed.
def test_libraries_that_take_turns_at_one_address(tmp_path):
    for name in ("a", "b"):
        compile_c(tmp_path, f"{name}.so", SMALL_PLUGIN.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "host", HOST, "-ldl")) as process:
        text = sfsample.folded(record_samples(process.pid, 300, rate=250, mode="wall"))
    counts = {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in text.splitlines())}
    right = [n for stack, n in counts.items() if stack.endswith(("run_a;entry;a_burn", "run_b;entry;b_burn"))]
    wrong = [n for stack, n in counts.items() if stack.endswith(("run_a;entry;b_burn", "run_b;entry;a_burn"))]
    assert len(right) == 2
    assert sum(right) > 100
    # the first sample opens modules after its capture, so that a swap in between is not noticed
    assert sum(wrong) <= 1


def test_row_of_unloaded_library_library_is_not_used(tmp_path):
    for name, size in (("a", "24"), ("b", "100")):
        source = PLUGIN.replace("NAME", name).replace("SIZE", size)
        compile_c(tmp_path, f"{name}.so", source, "-shared", "-fPIC", "-fno-stack-protector")
    with started(compile_c(tmp_path, "host", HOST, "-ldl")) as process:
        profile = record_samples(process.pid, fewer(150), rate=250, until=in_both)
    lines = sfsample.folded(profile).splitlines()
    stacks = [line.rpartition(" ")[0] for line in lines]
    cut_short = [stack for stack in stacks if "[truncated" in stack]
    inside = [stack for stack in stacks if "entry" in stack and stack not in cut_short]
    assert {found[1] for stack in inside if (found := IN_LIBRARY.search(stack))} == {"a", "b"}
    assert all(IN_LIBRARY.search(stack) for stack in inside), inside
    assert all(re.search(rf"no_row\];{UNTABLED}$", stack) for stack in cut_short), cut_short


# Loads a.so, and after a byte on standard input b.so instead.
SWAP = """
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    void *library = dlopen("./a.so", RTLD_NOW);
    puts("ready"); fflush(stdout);
    if (getchar() < 0) return 1;
    dlclose(library);
    library = dlopen("./b.so", RTLD_NOW);
    puts("ready"); fflush(stdout);
    return getchar() < 0 || !library;
}
"""


def test_library_that_replaced_another_is_not_taken_for_it(tmp_path):
    """sfsample reads the map before the change, and opens the file after it."""
    for name, size in (("a", "24"), ("b", "100")):
        source = PLUGIN.replace("NAME", name).replace("SIZE", size)
        compile_c(tmp_path, f"{name}.so", source, "-shared", "-fPIC")
    program = compile_c(tmp_path, "swap", SWAP, "-ldl")
    pipe = subprocess.PIPE
    with subprocess.Popen([program], cwd=tmp_path, stdin=pipe, stdout=pipe) as process:
        assert process.stdout.readline() == b"ready\n"
        proc = ProcFs(process.pid)
        opener = ImageOpener(proc, ImageCache(), None)
        [before] = [m for m in proc.maps() if m.executable and m.path.endswith("/a.so")]
        here = opener(before).build_id
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"ready\n"
        [after] = [m for m in proc.maps() if m.executable and m.path.endswith("/b.so")]
        assert (after.start, after.end) == (before.start, before.end)
        with pytest.raises(FormatError, match="another file was mapped there meanwhile"):
            opener(before)
        assert opener(after).build_id != here
        process.stdin.close()
        proc.close()


# The frames of these have the same sizes and one caller, so that their outer frames are equal.
TWIN = f"""
static volatile long n;
__attribute__((noinline)) void NAME_burn(void) {{ for (long i = 0; i < {LOOP_TURNS // 5}; i++) n++; }}
void NAME_entry(void) {{ NAME_burn(); __asm__ volatile(""); }}
"""
TWINS = """
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    puts("ready"); fflush(stdout);
    for (int i = 0;; i = !i) {
        void *library = dlopen(i ? "./b.so" : "./a.so", RTLD_NOW);
        ((void (*)(void))dlsym(library, i ? "b_entry" : "a_entry"))();
        dlclose(library);
    }
}
"""


def test_caller_in_unloaded_library_is_not_used(tmp_path):
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", TWIN.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "twins", TWINS, "-ldl")) as process:
        profile = record_samples(process.pid, fewer(80), rate=250, until=in_both)
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    assert {stack.partition(";main;")[2] for stack in stacks if stack.endswith("_burn")} == {
        "a_entry;a_burn", "b_entry;b_burn"}  # fmt: skip


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
    """Programs do this to get huge pages for their code (node --use-largepages); maps names no file there."""
    with started(compile_c(tmp_path, "moved", MOVED, *flags)) as process:
        wait_until_busy(process.pid)
        profile = record_samples(process.pid)
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    assert len(stacks) == 1
    assert stacks[0].startswith("moved;_start;")
    assert stacks[0].endswith(";main;outer;inner")
    assert profile.stats.stacks == {"outermost": profile.stats.samples}


HEADLESS = """
#include <stdio.h>
#include <sys/mman.h>
#define KEEP __attribute__((noinline))
extern char __ehdr_start[];
KEEP void inner(void)
{
    volatile char frame[300];
    puts("ready");
    fflush(stdout);
    for (volatile long i = 0;; i++) frame[i % 300] = 1;
}
KEEP void outer(void) { volatile char frame[100]; frame[0] = 1; inner(); __asm__ volatile(""); }
int main(void) { munmap(__ehdr_start, 4096); outer(); }
"""


@pytest.mark.parametrize("flags", [[], ["-Wl,--build-id=none"]], ids=["build-id", "none"])
def test_file_without_its_mapped_head_is_identified(tmp_path, flags):
    """The build-id is not in memory, but the kernel says which file is mapped."""
    with started(compile_c(tmp_path, "headless", HEADLESS, "-Wl,-z,now,-z,separate-code", *flags)) as process:
        profile = record_samples(process.pid)
    stacks = {line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()}
    assert stacks
    assert all(";main;outer;inner" in stack for stack in stacks), stacks
