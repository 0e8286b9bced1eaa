"""Stacks and goroutines of a library in Go, which a C program has loaded, and of two such libraries."""

import json
import shutil
import subprocess
from collections import Counter
from contextlib import contextmanager

import pytest

from sfsample.core.stack import StopReason
from tests.live.cli_runner import sfsample
from tests.live.compiled import compile_c, needs_gcc, needs_go, unpack_go
from tests.live.targets import HANG_S, LineReader, assert_untraced
from tests.live.test_go import captured, function_of, wrong_edges

pytestmark = [
    pytest.mark.live,
    needs_gcc,
    needs_go,
]

STACKS = 150
# For each byte that it reads, the program starts a thread that calls its libraries in turn, for ever.
HOST = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void (*work[3])(void);
static void *call(void *unused) { for (int i = 0;; i = work[i + 1] ? i + 1 : 0) work[i](); return unused; }
int main(int count, char **words)
{
    for (int i = 1; i < count; i++) {
        void *library = dlopen(words[i], RTLD_NOW);
        work[i - 1] = (void (*)(void))dlsym(library, "Work");
        ((void (*)(void))dlsym(library, "Start"))();
    }
    char byte;
    do {
        fputs("ready\\n", stderr);
        if (read(0, &byte, 1) != 1) return 0;
    } while (!pthread_create(&(pthread_t){0}, NULL, call, NULL));
}
"""


@contextmanager
def running(directory, *, libraries=1):
    """Run the program; yield its process, and a function that starts a thread of it."""
    library = unpack_go(directory, "shared", "1.24")
    copies = [shutil.copy(library, directory / f"shared{number}") for number in range(1, libraries)]
    command = [compile_c(directory, "host", HOST, "-ldl", "-pthread"), library, *copies]
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
            own = {function_of(module, frame.pc)[0] for frame, module in pairs}
            # sfsample may not stop a thread in epoll_wait to find its goroutine (docs/limits.md)
            if taken.reading is None or "runtime.netpoll" not in own:
                reasons[taken.stack.stop_reason] += 1
            if taken.stack.stop_reason is StopReason.OUTERMOST and "runtime.cgocallback" in own:
                assert "crosscall2" in own, own  # C has called Go
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


def test_two_runtimes_are_not_taken_for_one(tmp_path):
    crossed, mixed, reasons = set(), [], Counter()
    with running(tmp_path, libraries=2) as (process, _):
        stacks = captured(process.pid)
        for taken in stacks:
            names = [function_of(module, frame.pc)[0]
                     for frame, module in zip(taken.stack.frames, taken.modules, strict=True)]  # fmt: skip
            paths = {module.path for module in taken.modules if module and module.tables.go}
            mixed += [names] if len(paths) > 1 else []
            reasons[taken.stack.stop_reason] += 1
            if "runtime.cgocallback" in names and taken.stack.stop_reason is StopReason.OUTERMOST:
                crossed |= paths
            if reasons.total() >= STACKS and len(crossed) > 1:
                break
        stacks.close()
        text = sfsample("dump", "-p", process.pid, "--timeout", HANG_S)
        assert_untraced(process.pid)
    assert mixed == []
    # a crossing into the other runtime ends the stack; an instruction of `gogo` does so in 1 of 70,000 stacks
    ends = reasons[StopReason.OUTERMOST] + reasons[StopReason.REGISTER_UNKNOWN]
    assert ends >= 0.99 * reasons.total(), reasons
    missing = [
        line for line in text.err if "not all goroutines are shown: those of the Go runtime in" in line
    ]
    assert len(missing) == 1, text.err


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
