"""A page of the target that never comes (userfaultfd) keeps sfsample in a system call.

Signals are heard nevertheless, and other targets are sampled.
"""

import gc
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import sfsample
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.dumping.collect import STUCK, TIME_OVER
from tests.live.cli_runner import begun, catches_sigterm, ended, is_root, parse_folded, wait_until_sampled
from tests.live.cli_runner import sfsample as sfsample_run
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.targets import HANG_S, Target, assert_untraced, extended, fixture, running, wait_until

pytestmark = [pytest.mark.live, needs_gcc]

NO_USERFAULTFD = 9  # exit code
# After a byte on its input, a page in the middle of its stack is one that nothing brings; after another byte,
# the program itself does.
PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };
static volatile int go;
static volatile long count;
static struct uffdio_zeropage bring;
static int fd;

static void withhold(char *page) {
    fd = syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = { .api = UFFD_API };
    struct uffdio_register range = { { (uintptr_t)page, PAGE }, UFFDIO_REGISTER_MODE_MISSING, 0 };
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range)) _exit(9);
    bring.range = range.range;
}

__attribute__((noinline)) void stuck(void) {
    char unused[16 * PAGE];
    withhold((char *)(((uintptr_t)unused + 8 * PAGE) & -PAGE));
    puts("stuck");
    fflush(stdout);
    for (;;) { count++; asm volatile("" : : "r"(unused) : "memory"); }
}

__attribute__((noinline)) void busy(void) { while (!go) count++; }

static void *wait_for_byte(void *unused) {
    char byte;
    if (read(0, &byte, 1) == 1) go = 1;
    if (read(0, &byte, 1) == 1) ioctl(fd, UFFDIO_ZEROPAGE, &bring);
    for (;;) pause();
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, wait_for_byte, 0);
    puts("ready");
    fflush(stdout);
    busy();
    stuck();
}
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not is_root():
        pytest.skip("userfaultfd(2) for faults of the kernel needs root")
    return compile_c(tmp_path_factory.mktemp("stuck"), "stuck", PROGRAM, "-pthread")


@pytest.fixture
def target(program: Path) -> "Iterator[subprocess.Popen[bytes]]":
    with started(program, stdin=subprocess.PIPE) as process:
        yield process


def withhold(target: "subprocess.Popen[bytes]") -> None:
    assert target.stdin is not None
    assert target.stdout is not None
    target.stdin.write(b"\n")
    target.stdin.flush()
    line = target.stdout.readline()
    if not line and target.wait() == NO_USERFAULTFD:
        pytest.skip("this kernel or container does not allow userfaultfd(2)")
    assert line == b"stuck\n"


def bring_page(target: "subprocess.Popen[bytes]") -> None:
    assert target.stdin is not None
    target.stdin.write(b"\n")
    target.stdin.flush()


def is_held(pid: int) -> bool:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(") ")[2][0] == "t"


def os_threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def is_stuck(pid: int) -> bool:
    """Whether a thread of sfsample waits for the page (fs/userfaultfd.c)."""
    for path in Path(f"/proc/{pid}/task").glob("*/wchan"):
        with suppress(OSError):  # the thread has ended
            if path.read_text() == "handle_userfault":
                return True
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, extended(signal.SIGTERM)])
def test_signal_ends_a_recording_that_is_stuck(target, tmp_path, number):
    with begun("-p", target.pid, "-o", tmp_path / "out", "--no-perf-events") as child:
        wait_until_sampled(target.pid)
        withhold(target)
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        child.send_signal(number)
        done = ended(child)
    assert done.code == 0
    assert any("did not end" in line for line in done.err)
    assert any(stack.endswith("main;busy") for stack in parse_folded((tmp_path / "out").read_bytes()))
    wait_until(lambda: not is_held(target.pid), "it runs again")
    assert_untraced(target.pid)


def test_duration_ends_a_recording_that_is_stuck(target, tmp_path):
    with begun("-p", target.pid, "-o", tmp_path / "out", "-d", "3", "--no-perf-events") as child:
        wait_until_sampled(target.pid)
        withhold(target)
        assert ended(child).code == 0
    assert parse_folded((tmp_path / "out").read_bytes())
    wait_until(lambda: not is_held(target.pid), "it runs again")


def test_recording_without_a_sample_says_why(target):
    withhold(target)
    with begun("-p", target.pid, "--no-perf-events") as child:
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        child.send_signal(signal.SIGINT)
        done = ended(child)
    assert done.code == 1
    assert done.err[0].startswith("sfsample: stuck: ")


def test_second_signal_aborts_a_recording_that_is_stuck(target):
    withhold(target)
    with begun("-p", target.pid, "--no-perf-events") as child:
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert (done.code, done.err[-1]) == (1, "sfsample: aborted")


def test_dump_shows_what_it_has_of_a_process_that_it_is_stuck_on(target):
    withhold(target)
    with begun("dump", "-p", target.pid) as child:
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert done.code == 5
    assert done.out.count(b"not captured: sfsample was asked to end") == 2
    assert done.out.count(b"\nthread ") == 2


def test_library_is_free_to_go_on_where_its_thread_is_stuck(target):
    withhold(target)
    with pytest.raises(sfsample.SfsampleError, match="stuck: a system call on the target"):
        sfsample.record(target.pid, 0.2)
    with pytest.raises(sfsample.NotPermitted, match="sfsample traces it already") as refusal:
        sfsample.record(target.pid, 0.2)
    tracer = "the tracer is a recording that goes on, or that is stuck in a system call on this process"
    assert refusal.value.help == (tracer,)
    with running(fixture("v3"), "leaf") as other:
        profile = sfsample.Profile(99)
        sfsample.record(other.pid, HANG_S, profile=profile, should_stop=lambda: profile.stats.samples > 0)
        assert profile.stats.samples


# -- beside other targets


@pytest.fixture
def neighbour() -> Iterator[Target]:
    """Start a program that sleeps: it is read, so it is never about to stop while sfsample is stuck."""
    with running(fixture("v3"), "sleep") as good:
        yield good


def sampled_in(path: Path) -> set[int]:
    """Return the processes with samples in a profile."""
    profile = json.loads(path.read_text())
    return {profile["threads"][stack["thread"]]["pid"] for stack in profile["stacks"]}


def slices_in(directory: Path) -> list[set[int]]:
    """Return the processes with samples in each slice of a watch, in order of time."""
    return [sampled_in(path) for path in sorted(directory.glob("*.json"))]


def test_watch_goes_on_with_the_others_and_comes_back(target, neighbour, tmp_path):
    """The stuck target is released and said once; when its page has come, it is sampled again."""
    withhold(target)
    sinks = ("--output-dir", tmp_path / "slices", "--history", tmp_path / "history")
    pids = f"{target.pid},{neighbour.pid}"
    with begun("watch", "-p", pids, "--for", "2s", "--every", "2s", *sinks) as child:
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        wait_until(lambda: len(slices_in(tmp_path / "slices")) >= 2, "there are slices")
        before = slices_in(tmp_path / "slices")
        wait_until(lambda: not is_held(target.pid), "it runs again")
        bring_page(target)
        wait_until(lambda: target.pid in slices_in(tmp_path / "slices")[-1], "it is sampled again")
        wait_until(lambda: catches_sigterm(child.pid), "it goes on")
        child.send_signal(signal.SIGTERM)
        done = ended(child)
    assert done.code == 0
    slices = slices_in(tmp_path / "slices")
    assert all(neighbour.pid in pids for pids in slices)
    assert target.pid not in before[1]
    said = [line for line in done.err if "sfsample traces it already" in line]
    assert len(said) < len(slices) - 1, "not at each slice"
    assert f"thread {target.pid} stays stopped until the call returns): {target.pid}" in said[0]
    listed = json.loads(sfsample_run("history", "list", "--json", "--history", tmp_path / "history").out)
    gaps = [gap for gap in listed["gaps"] if gap["service"] == "target"]  # the program of the neighbour
    assert len(gaps) <= len(said), "sfsample begins anew, and misses nothing else"
    assert_untraced(target.pid)


def test_recording_goes_on_with_the_others(target, neighbour, tmp_path):
    pids = f"{target.pid},{neighbour.pid}"
    words = ("-p", pids, "-d", "4", "--mode", "wall", "-f", "json", "-o", tmp_path / "out")
    with begun(*words, "--stats", tmp_path / "stats") as child:
        wait_until_sampled(target.pid)
        withhold(target)
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        done = ended(child)
    stats = json.loads((tmp_path / "stats").read_text())
    assert (done.code, stats["duration_s"] >= 4) == (0, True)
    assert stats["late_ticks"] > 0
    assert sampled_in(tmp_path / "out") == {target.pid, neighbour.pid}
    assert any("not recorded: sfsample traces it already" in text for text in stats["problems"])
    assert not any("what came after" in text for text in stats["problems"])
    wait_until(lambda: not is_held(target.pid), "it runs again")
    assert_untraced(target.pid)


@pytest.mark.parametrize("number", [signal.SIGINT, extended(signal.SIGTERM)])
def test_signal_ends_a_recording_of_the_others(target, neighbour, tmp_path, number):
    withhold(target)
    pids = f"{target.pid},{neighbour.pid}"
    with begun("-p", pids, "-o", tmp_path / "out", "--mode", "wall") as child:
        wait_until(lambda: is_stuck(child.pid), "sfsample waits for the page")
        wait_until(lambda: len(os.listdir(f"/proc/{child.pid}/task")) >= 3, "another thread goes on")
        child.send_signal(number)
        done = ended(child)
    assert done.code == 0
    wait_until(lambda: not is_held(target.pid), "it runs again")


@pytest.mark.parametrize("flags", [(), ("--consistent",)])
def test_dump_shows_the_others(target, neighbour, flags):
    withhold(target)
    done = sfsample_run("dump", "-p", f"{target.pid},{neighbour.pid}", "--json", *flags)
    assert done.code == 5
    assert [line for line in done.err if line.startswith("sfsample: ")] == [
        f"sfsample: stuck: a system call on the target, or a computation, did not end: {target.pid}"
    ]
    stuck, good = json.loads(done.out)["processes"]
    assert [thread["error"] for thread in stuck["threads"]] == [STUCK] * 2
    assert [thread["error"] for thread in good["threads"]] == [None]
    assert good["threads"][0]["frames"]
    wait_until(lambda: not is_held(target.pid), "it runs again")
    assert_untraced(target.pid)


def test_dump_ends_after_its_time(neighbour):
    """sfsample opens the process, which takes longer than 1 ms, and then captures no thread."""
    done = sfsample_run("dump", neighbour.pid, "--timeout", "1ms")
    assert done.code == 5
    assert TIME_OVER.encode() in done.out
    assert done.err == [
        "sfsample: the dump is not complete: its time was over, 0.001 s",
        "  allow more: --timeout",
    ]


def test_dump_of_a_process_that_it_is_stuck_on_ends_by_itself(target):
    withhold(target)
    done = sfsample_run("dump", target.pid)
    assert done.code == 5
    assert done.out.count(f"not captured: {STUCK}".encode()) == 2
    wait_until(lambda: not is_held(target.pid), "it runs again")


def test_thread_that_is_stuck_releases_when_the_page_comes(target, neighbour):
    """The library goes on meanwhile; when the page has come, nothing is left of the thread."""
    withhold(target)
    before = os_threads()
    profile = sfsample.record([target.pid, neighbour.pid], 3, sfsample.RecordOptions(mode="wall"))
    assert profile.stats.samples
    assert is_held(target.pid)
    counted = profile.stats.samples
    bring_page(target)
    wait_until(lambda: not is_held(target.pid), "it runs again")
    wait_until(lambda: os_threads() == before, "the thread has ended")
    assert_untraced(target.pid)
    assert profile.stats.samples == counted
    assert gc.isenabled()
    assert not SUSPEND_LOCK.locked()
