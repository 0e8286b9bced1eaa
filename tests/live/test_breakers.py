"""What a hostile tester found: each once wrong on a real process.

Law: built from source here, so gcc is wanted; where there is none, the tests say so.
"""

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import sfsample
from sfsample.core.arch import AMD64
from tests.live.cli_runner import wait_until_sampled
from tests.live.recording import fewer, record_samples
from tests.live.targets import ARCH, HANG_S, fixture, running, states, tids, wait_until

pytestmark = [pytest.mark.live]
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the target with")

# of a loop: for longer than a look takes, which is long where all is emulated
TURNS = 20_000_000 if ARCH is AMD64 else 500_000_000
PLUGIN = f"""
static volatile long n;
__attribute__((noinline)) void NAME_burn(void) {{ for (long i = 0; i < {TURNS}; i++) n++; }}
void entry(void) {{ NAME_burn(); __asm__ volatile(""); }}
"""
HOST = """
#include <dlfcn.h>
#include <stdio.h>
typedef void (*work)(void);
__attribute__((noinline)) void run_a(work f) { f(); __asm__ volatile(""); }
__attribute__((noinline)) void run_b(work f) { f(); __asm__ volatile(""); }
int main(void)
{
    puts("ready"); fflush(stdout);
    for (;;) {
        void *a = dlopen("./a.so", RTLD_NOW); run_a((work)dlsym(a, "entry")); dlclose(a);
        void *b = dlopen("./b.so", RTLD_NOW); run_b((work)dlsym(b, "entry")); dlclose(b);
    }
}
"""
VFORK = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) void spawn(void) { if (!vfork()) _exit(0); wait(0); __asm__ volatile(""); }
int main(void) { puts("ready"); fflush(stdout); for (;;) spawn(); }
"""


def compile_c(directory: Path, name: str, source: str, *flags: str) -> Path:
    path = directory / name
    subprocess.run(["gcc", "-O1", "-x", "c", "-", "-o", path, *flags], input=source, text=True, check=True)
    return path


@contextmanager
def started(program: Path) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a program that says when it is ready; kill and reap it at the end."""
    with subprocess.Popen([program], cwd=program.parent, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


# Each library works for tens of milliseconds: two swaps within one look (a millisecond) would deceive us.
@needs_gcc
def test_libraries_that_take_turns_at_one_address(tmp_path):
    for name in ("a", "b"):
        compile_c(tmp_path, f"{name}.so", PLUGIN.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "host", HOST, "-ldl")) as process:
        text = sfsample.folded(record_samples(process.pid, 300, rate=99, mode="wall"))
    counts = {stack: int(count) for stack, _, count in (line.rpartition(" ") for line in text.splitlines())}
    right = [n for stack, n in counts.items() if stack.endswith(("run_a;entry;a_burn", "run_b;entry;b_burn"))]
    wrong = [n for stack, n in counts.items() if stack.endswith(("run_a;entry;b_burn", "run_b;entry;a_burn"))]
    assert len(right) == 2
    assert sum(right) > 100
    # the first look opens modules after its capture, so a swap just then cannot be told: one sample
    assert sum(wrong) <= 1


@needs_gcc
def test_vfork_keeps_its_return_address_in_a_register(tmp_path):
    with started(compile_c(tmp_path, "forks", VFORK)) as process:
        profile = record_samples(process.pid, fewer(200))
    assert profile.stats.stacks["no_progress"] == 0


def test_ctrl_z_suspends_the_sampler_and_not_the_target():
    with running(fixture("v3"), "threads", "3") as target:
        command = [
            sys.executable,
            "-m",
            "sfsample",
            "-q",
            "-p",
            str(target.pid),
            "-r",
            "500",
            "-o",
            "/dev/null",
        ]
        sampler = subprocess.Popen([*command, "--mode", "wall"])
        try:
            wait_until_sampled(tids(target.pid)[-1])  # one that spins
            for _ in range(20):
                sampler.send_signal(signal.SIGTSTP)
                wait_until(lambda: _state(sampler.pid) == "T", "the sampler is suspended")
                assert "t" not in states(target.pid)
                sampler.send_signal(signal.SIGCONT)
                wait_until(lambda: _state(sampler.pid) != "T", "the sampler goes on")
            sampler.send_signal(signal.SIGINT)
            assert sampler.wait(HANG_S) == 0
        finally:
            sampler.kill()
            sampler.wait()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
