"""Stacks and goroutines of a library in Go, which a C program has loaded."""

import json
import subprocess
from collections import Counter
from contextlib import contextmanager

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.stack import StopReason
from tests.live.cli_runner import sfsample
from tests.live.compiled import compile_c, needs_gcc, unpack_go
from tests.live.targets import ARCH, HANG_S, LineReader, assert_untraced
from tests.live.test_go import captured, function_of, wrong_edges

pytestmark = [
    pytest.mark.live,
    needs_gcc,
    pytest.mark.skipif(ARCH is not AMD64, reason="the library is for x86-64"),
]

STACKS = 150
# For each byte that it reads, the program starts a thread that calls the library for ever.
HOST = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void (*work)(void);
static void *call(void *unused) { for (;;) work(); return unused; }
int main(int count, char **words)
{
    void *library = dlopen(words[1], RTLD_NOW);
    work = (void (*)(void))dlsym(library, "Work");
    ((void (*)(void))dlsym(library, "Start"))();
    char byte;
    do {
        fputs("ready\\n", stderr);
        if (read(0, &byte, 1) != 1) return 0;
    } while (!pthread_create(&(pthread_t){0}, NULL, call, NULL));
}
"""


@contextmanager
def running(directory):
    """Run the program; yield its process, and a function that starts a thread of it."""
    command = [compile_c(directory, "host", HOST, "-ldl", "-pthread"), unpack_go(directory, "shared", "1.24")]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, bufsize=0) as process:
        lines = LineReader(process.stderr.fileno())

        def begin():
            process.stdin.write(b"b")
            assert lines.line() == "ready"

        try:
            assert lines.line() == "ready"
            begin()
            yield process, begin
        finally:
            process.kill()


def test_stacks_of_threads_from_c_are_whole(tmp_path):
    reasons, names, wrong = Counter(), Counter(), Counter()
    with running(tmp_path) as (process, begin):
        stacks = captured(process.pid)
        next(stacks)
        begin()  # the stack of the new thread is mapped after the maps were read
        for number, taken in enumerate(stacks):
            pairs = zip(taken.stack.frames, taken.modules, strict=True)
            reasons[taken.stack.stop_reason] += 1
            own = {function_of(module, frame.pc)[0] for frame, module in pairs}
            assert ("runtime.cgocallback" in own) == ("crosscall2" in own), own  # C has called Go
            names.update(own)
            wrong.update(wrong_edges(taken))
            crossings = names["runtime.systemstack"], names["runtime.cgocallback"]
            if number >= STACKS and all(crossings):
                break
        stacks.close()
        assert_untraced(process.pid)
        assert process.poll() is None
    assert wrong == {}
    assert reasons[StopReason.OUTERMOST] >= 0.99 * reasons.total(), reasons


def test_goroutines_of_the_library_are_shown(tmp_path):
    with running(tmp_path) as (process, _):
        done = sfsample("dump", "-p", process.pid, "--timeout", HANG_S, "--json")
        assert_untraced(process.pid)
        assert process.poll() is None
    goroutines = json.loads(done.out)["processes"][0]["goroutines"]
    waiting = [goroutine for goroutine in goroutines if goroutine["state"] == "chan receive"]
    assert ["main.receive" in [f["function"] for f in goroutine["frames"]] for goroutine in waiting] == [
        True
    ] * 5
    assert len({goroutine["waits_for"]["address"] for goroutine in waiting}) == 1
