"""One page of a library is replaced by a page of another library: no frame has the name of the wrong file.

The two pages have the same bytes, so only the memory map tells them apart (stackpulse 0.2.0).  A page of
anonymous memory, whose bytes differ, has no name.
"""

from itertools import pairwise

import pytest

from sfsample.api import named
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import record_samples
from tests.live.targets import assert_untraced

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_gcc]

LIBRARY = """
#define PAGE(name) __attribute__((section(name), aligned(4096)))
PAGE(".text.a") long before(long n) { return n; }
PAGE(".text.b") long REPLACED(long (*spin)(volatile long *), volatile long *one)
{
    long sum = 0;
    if (spin) sum = spin(one);
    else for (long i = 0; i < 40000000; i++) sum += *one;
    return sum + 1;
}
PAGE(".text.c") long after(long n) { return n; }
"""
HOST = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
typedef long (*spinner)(volatile long *);
typedef long (*replaced)(spinner, volatile long *);
#define NOINLINE __attribute__((noinline))
volatile long one = 1;
long spin(volatile long *n) { long sum = 0; for (long i = 0; i < 40000000; i++) sum += *n; return sum; }
NOINLINE long in_a(replaced f, spinner s) { long r = f(s, &one); __asm__ volatile(""); return r; }
NOINLINE long in_b(replaced f, spinner s) { long r = f(s, &one); __asm__ volatile(""); return r; }
NOINLINE long in_anonymous(replaced f, spinner s) { long r = f(s, &one); __asm__ volatile(""); return r; }
static void replace(void *page, int file, long offset)
{ mmap(page, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, file, offset); }
int main(void)
{
    spinner called = getenv("CALLS") ? spin : NULL;  // NULL: the page has the innermost function
    void *a = dlopen("./a.so", RTLD_NOW), *b = dlopen("./b.so", RTLD_NOW);
    char *page = dlsym(a, "replaced_a"), *of_b = dlsym(b, "replaced_b");
    struct link_map *map;
    dlinfo(b, RTLD_DI_LINKMAP, &map);
    long offset = of_b - (char *)map->l_addr;
    int file_a = open("./a.so", O_RDONLY), file_b = open("./b.so", O_RDONLY);
    puts("ready"); fflush(stdout);
    for (;;) {
        in_a((replaced)page, called);
        replace(page, file_b, offset);
        in_b((replaced)page, called);
        mmap(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        memcpy(page, of_b, 2048);
        in_anonymous((replaced)page, called);
        replace(page, file_a, offset);
    }
}
"""


@pytest.mark.parametrize("wrapper", [(), ("env", "CALLS=1")])
def test_function_is_that_of_the_file_that_is_mapped(tmp_path, wrapper):
    for name in ("a", "b"):
        flags = ("-shared", "-fPIC", "-Wl,-z,noseparate-code", f"-DREPLACED=replaced_{name}")
        compile_c(tmp_path, f"{name}.so", LIBRARY, *flags)
    with started(compile_c(tmp_path, "host", HOST), wrapper=wrapper) as target:
        report = named(record_samples(target.pid))
        assert_untraced(target.pid)
    pairs = set()
    for stack in report.stacks:
        functions = [report.frames[at].function for at in stack.frames]
        pairs |= {(callee, caller) for callee, caller in pairwise(functions)
                  if caller in ("in_a", "in_b", "in_anonymous")}  # fmt: skip
    assert pairs == {("replaced_a", "in_a"), ("replaced_b", "in_b"), (None, "in_anonymous")}
