"""One page of a library is replaced by a page of another library: no frame has the name of the wrong file.

The two pages have the same bytes, so only the memory map tells them apart (stackpulse 0.2.0).
"""

from itertools import pairwise

import pytest

from sfsample.api import named
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import record_samples
from tests.live.targets import assert_untraced

pytestmark = [pytest.mark.live, needs_gcc]

LIBRARY = """
#define PAGE(name) __attribute__((section(name), aligned(4096)))
PAGE(".text.a") long before(long n) { return n; }
PAGE(".text.b") long LEAF(volatile long *one)
{ long sum = 0; for (long i = 0; i < 10000000; i++) sum += *one; return sum; }
PAGE(".text.c") long after(long n) { return n; }
"""
HOST = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
typedef long (*leaf)(volatile long *);
volatile long one = 1;
__attribute__((noinline)) long in_a(leaf f) { long r = f(&one); __asm__ volatile(""); return r; }
__attribute__((noinline)) long in_b(leaf f) { long r = f(&one); __asm__ volatile(""); return r; }
static void replace(void *page, int file, long offset)
{ mmap(page, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, offset); }
int main(void)
{
    void *a = dlopen("./a.so", RTLD_NOW), *b = dlopen("./b.so", RTLD_NOW);
    char *leaf_a = dlsym(a, "leaf_a"), *leaf_b = dlsym(b, "leaf_b");
    struct link_map *map;
    dlinfo(b, RTLD_DI_LINKMAP, &map);
    long offset = leaf_b - (char *)map->l_addr;
    int file_a = open("./a.so", O_RDONLY), file_b = open("./b.so", O_RDONLY);
    puts("ready"); fflush(stdout);
    for (;;) {
        in_a((leaf)leaf_a);
        replace(leaf_a, file_b, offset);
        in_b((leaf)leaf_a);
        replace(leaf_a, file_a, offset);
    }
}
"""


def test_function_is_that_of_the_file_that_is_mapped(tmp_path):
    for name in ("a", "b"):
        flags = ("-shared", "-fPIC", "-Wl,-z,noseparate-code", f"-DLEAF=leaf_{name}")
        compile_c(tmp_path, f"{name}.so", LIBRARY, *flags)
    with started(compile_c(tmp_path, "host", HOST)) as target:
        report = named(record_samples(target.pid))
        assert_untraced(target.pid)
    pairs = set()
    for stack in report.stacks:
        functions = [report.frames[at].function for at in stack.frames]
        pairs |= {(callee, caller) for callee, caller in pairwise(functions)
                  if caller in ("in_a", "in_b")}  # fmt: skip
    assert pairs == {("leaf_a", "in_a"), ("leaf_b", "in_b")}
