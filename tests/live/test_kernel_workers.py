"""Kernel threads of a process (io_uring workers) are sampled with their CPU time, and not counted as lost.

They have no stack in user space.  One runs, the other sleeps.
"""

import subprocess

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from tests.live.cli_runner import sfsample as run
from tests.live.compiled import compile_c, needs_gcc
from tests.live.recording import record_samples
from tests.live.targets import started, tids, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_gcc]

# A ring that a kernel thread polls, and another where a read from an empty pipe waits in a worker.
RINGS = """
#include <linux/io_uring.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
static void submit(unsigned flags, struct io_uring_sqe entry)
{
    struct io_uring_params p = {.flags = flags, .sq_thread_idle = 600000};
    int fd = syscall(425, 4, &p);
    if (fd < 0) exit(77);
    char *ring = mmap(0, p.sq_off.array + p.sq_entries * 4, 3, MAP_SHARED, fd, 0);
    struct io_uring_sqe *entries = mmap(0, p.sq_entries * sizeof *entries, 3, MAP_SHARED, fd, 0x10000000);
    entries[0] = entry;
    *(unsigned *)(ring + p.sq_off.array) = 0;
    __atomic_store_n((unsigned *)(ring + p.sq_off.tail), 1, __ATOMIC_SEQ_CST);
    syscall(426, fd, 1, 0, flags ? IORING_ENTER_SQ_WAKEUP : 0, 0, 0);
}
int main(int argc, char **argv)
{
    static char byte;
    int ends[2];
    if (pipe(ends)) return 1;
    submit(IORING_SETUP_SQPOLL, (struct io_uring_sqe){.opcode = IORING_OP_NOP});
    submit(0, (struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = ends[0], .addr = (uintptr_t)&byte,
                                    .len = 1, .flags = IOSQE_ASYNC});
    if (argc < 2) return 0;
    dprintf(atoi(argv[1]), "ready %d\\n", getpid());
    for (;;) pause();
}
"""


@pytest.fixture
def rings(tmp_path):
    program = compile_c(tmp_path, "rings", RINGS)
    if subprocess.run([program], check=False).returncode == 77:
        pytest.skip("this kernel offers no io_uring")
    with started([str(program), "{fd}"]) as target:
        target.await_ready()
        wait_until(lambda: len(tids(target.pid)) == 3, "both workers are there")
        yield target
        target.assert_unharmed()


@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_workers_are_sampled_and_not_lost(rings, mode):
    profile = record_samples(rings.pid, 60, mode=mode)

    stats = profile.stats
    assert stats.stacks == {StopReason.OUTERMOST: stats.samples}
    assert stats.captures[Capture.FAILED] == 0
    workers = {
        line.split()[0] for line in sfsample.folded(profile).splitlines() if "kernel_worker_[k]" in line
    }
    assert workers == {"rings;kernel_worker_[k]"}


def test_command_line_names_workers(rings):
    done = run("-p", rings.pid, "-d", "1", "-t", "--mode", "wall")

    roots = {stack.split("/")[0]: stack.split(";")[1:] for stack in done.stacks()}
    workers = {root[:7]: frames for root, frames in roots.items() if root != "rings"}
    assert workers == {"iou-sqp": ["kernel_worker_[k]"], "iou-wrk": ["kernel_worker_[k]"]}


def test_dump_names_workers(rings):
    done = run("dump", "-p", rings.pid)

    assert done.code == 0
    assert done.out.decode().count("works for the kernel") == 2
