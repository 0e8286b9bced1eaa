"""Stacks of sleeping threads are found without a stop if the CFA depends on the frame pointer.

A stop would interrupt the system calls of these threads.  gdb unwinds the same threads afterwards; until then
no call of theirs returns.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.process.syscall_names import syscall_name
from tests.live.compiled import compile_c, needs_gcc
from tests.live.recording import record_samples
from tests.live.targets import ARCH, HANG_S, LineReader, assert_untraced, extended, states, tids, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_gcc]

# `leave_traces` first calls every function, so that the stack on which it sleeps later holds return addresses
# of earlier calls.
LIBRARY = """
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <alloca.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone, visibility("default")))
FUNCTION void use(void *frame) { __asm__ volatile("" : : "r"(frame) : "memory"); }
FUNCTION int in_epoll(int size, int asleep)
{
    char frame[size];
    struct epoll_event events[1];
    use(frame);
    int result = asleep ? epoll_wait(epoll_create1(0), events, 1, -1) : 0;
    use(frame);
    return result;
}
FUNCTION int in_semop(int size, int asleep)
{
    char *frame = alloca(size);
    struct sembuf down = {0, -1, 0};
    use(frame);
    int set = asleep ? semget(IPC_PRIVATE, 1, 0600) : -1;
    struct timespec hour = {3600, 0};
    int result = asleep ? semtimedop(set, &down, 1, &hour) : 0;
    use(frame);
    return result;
}
FUNCTION int in_sigwait(int size, int asleep)
{
    char frame[size];
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    struct timespec hour = {3600, 0};
    use(frame);
    int result = asleep ? sigtimedwait(&set, NULL, &hour) : 0;
    use(frame);
    return result;
}
FUNCTION int in_aio(int size, int asleep)
{
    char frame[size];
    char event[32];
    unsigned long context = 0;
    use(frame);
    int result = asleep ? syscall(SYS_io_setup, 8, &context) : 0;
    if (asleep) result = syscall(SYS_io_getevents, context, 1, 1, event, NULL);
    use(frame);
    return result;
}
"""
MAIN = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#define FUNCTION __attribute__((noinline, noclone))
FUNCTIONS
FUNCTION int leave_traces(int depth, int (*call)(int, int))
{
    char deep[300 * depth];
    memset(deep, 1, sizeof deep);
    int result = depth ? leave_traces(depth - 1, call) : 0;
    return result + call(64 * depth, 0) + deep[5];
}
#define THREAD(NAME) \
    FUNCTION int between_##NAME(int size) { int result = NAME(size, 1); use(&result); return result; } \
    static void *thread_##NAME(void *size) { \
        prctl(PR_SET_NAME, #NAME); \
        leave_traces(4, NAME); \
        use(size); \
        for (;;) { \
            printf("asleep %s\n", #NAME); fflush(stdout); \
            between_##NAME(*(int *)size); \
            printf("returned %s\n", #NAME); fflush(stdout); \
        } \
        return size; \
    }
THREAD(in_epoll)
THREAD(in_semop)
THREAD(in_sigwait)
THREAD(in_aio)
int main(int count, char **words)
{
    (void)words;
    int size = 700 * count;
    pthread_t thread;
    pthread_create(&thread, NULL, thread_in_epoll, &size);
    pthread_create(&thread, NULL, thread_in_semop, &size);
    pthread_create(&thread, NULL, thread_in_sigwait, &size);
    pthread_create(&thread, NULL, thread_in_aio, &size);
    prctl(PR_SET_PDEATHSIG, 9);
    pthread_join(thread, NULL);
}
"""
NAMES = {"in_epoll", "in_semop", "in_sigwait", "in_aio"}
# functions of libc without a frame: on other architectures their return address is in a register
ENDS = set() if ARCH is AMD64 else {"in_aio", "in_semop"}
CALLS = {"epoll_wait", "epoll_pwait", "semtimedop", "ipc", "rt_sigtimedwait", "io_getevents"}


def build(directory: Path, place: str) -> Path:
    """Build the program; its functions are in `place`: `program`, or a library bound `lazy` or `now`."""
    if place == "program":
        return compile_c(directory, "sleepers", MAIN.replace("FUNCTIONS", LIBRARY))
    compile_c(directory, "libsleepers.so", LIBRARY, "-shared", "-fPIC")
    declared = "".join(f"int {name}(int, int);\n" for name in sorted(NAMES)) + "void use(void *);\n"
    flags = ["-L", str(directory), f"-Wl,-rpath,{directory}", f"-Wl,-z,{place}"]
    main = directory / "sleepers.c"
    main.write_text(MAIN.replace("FUNCTIONS", declared))
    program = directory / "sleepers"
    subprocess.run(["gcc", "-O1", main, "-o", program, *flags, "-lsleepers"], check=True)
    return program


def gdb(pid: int) -> dict[int, list[int]]:
    """Return by thread the pc of every frame except the innermost, which gdb does not always print."""
    words = ["gdb", "-nx", "-batch", "-p", str(pid), "-ex", "thread apply all bt"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True, timeout=4 * HANG_S).stdout
    stacks: dict[int, list[int]] = {}
    for line in printed.splitlines():
        if found := re.match(r"Thread \d+ .*LWP (\d+)", line):
            pcs = stacks.setdefault(int(found[1]), [])
        elif found := re.match(r"#[1-9]\d* +0x([0-9a-f]+)(?: \[PAC\])? in ", line):
            pcs.append(int(found[1], 16))
    return stacks


@contextmanager
def asleep(program: Path) -> Iterator[tuple[int, LineReader]]:
    """Run the program; yield when all of its threads sleep in their calls."""
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            reader = LineReader(process.stdout.fileno())
            assert {reader.line() for _ in NAMES} == {f"asleep {name}" for name in NAMES}
            sleepers = [tid for tid in tids(process.pid) if tid != process.pid]
            wait_until(lambda: all(is_in_its_call(process.pid, tid) for tid in sleepers), "all asleep")
            yield process.pid, reader
        finally:
            process.kill()


def is_in_its_call(pid: int, tid: int) -> bool:
    number = Path(f"/proc/{pid}/task/{tid}/syscall").read_text().split()[0]  # or "running"
    return number.isdecimal() and syscall_name(int(number)) in CALLS


def sleepers_of(dump: sfsample.ProcessDump) -> list[sfsample.ThreadDump]:
    threads = [thread for thread in dump.threads if thread.name in NAMES]
    assert {thread.name for thread in threads} == NAMES
    return threads


needs_gdb = pytest.mark.skipif(
    shutil.which("gdb") is None, reason="no gdb to compare with (scripts/setup dev)"
)


@needs_gdb
@pytest.mark.parametrize("place", ["program", "lazy", extended("now")])
def test_frame_is_found_without_a_stop_and_gdb_agrees(tmp_path, place):
    with asleep(build(tmp_path, place)) as (pid, reader):
        dump = sfsample.dump(pid)
        profile = record_samples(pid, 20, rate=99, mode="wall")
        assert reader.available() == []
        truth = gdb(pid)

    assert profile.stats.eintr_prone_stops == 0
    threads = sleepers_of(dump)
    assert {thread.capture for thread in threads} == {Capture.READ}
    reasons = {thread.name: thread.stack.stop_reason for thread in threads}
    assert {name for name, reason in reasons.items() if reason is StopReason.REGISTER_UNKNOWN} == ENDS
    assert (
        set(profile.stats.stacks)
        == set(reasons.values())
        <= {StopReason.OUTERMOST, StopReason.REGISTER_UNKNOWN}
    )
    found = [frame.found for thread in threads for frame in thread.stack.frames]
    assert ENDS or 3 <= found.count(Found.SCAN) <= 4  # libc's sigtimedwait may have saved the frame pointer
    for thread in threads:
        if thread.name not in ENDS:
            assert [frame.pc for frame in thread.stack.frames[1:]] == truth[thread.tid]
            assert f";thread_{thread.name};between_{thread.name};{thread.name};" in sfsample.folded(profile)


@needs_gdb
def test_job_stopped_thread_is_traced(tmp_path):
    """A job-stopped thread has left its system call, so a ptrace stop interrupts nothing."""
    with asleep(build(tmp_path, "program")) as (pid, _):
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: states(pid) == {"T"}, "job-stopped")
        threads = sleepers_of(sfsample.dump(pid))
        assert_untraced(pid, stopped=True)
        truth = gdb(pid)

    for thread in threads:
        assert thread.stack.stop_reason is StopReason.OUTERMOST
        assert [frame.pc for frame in thread.stack.frames[1:]] == truth[thread.tid]
        assert Found.SCAN not in {frame.found for frame in thread.stack.frames}
