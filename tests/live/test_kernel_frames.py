"""Running threads have kernel frames: timers show those of `perf record -g`, stops the system call.

The target spends shares of its CPU time in system calls, and writes after each round how long it was in each.
"""

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path

import pytest

import sfsample
from sfsample.core.arch import AMD64
from sfsample.process.kernel_symbols import KERNEL_SYMBOLS_HIDDEN, shows_addresses
from sfsample.recording.profile import Profile
from tests.live.cli_runner import STOPPING, parse_folded, sampled
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.perf_recording import needs_timers, record_by_perf
from tests.live.targets import ARCH, python
from tests.live.test_names import can_run

pytestmark = [pytest.mark.live, needs_gcc]
needs_symbols = pytest.mark.skipif(not shows_addresses(), reason="the kernel hides its addresses")
NO_SYSLOG = ("setpriv", "--bounding-set=-syslog")
HIDDEN = (*NO_SYSLOG, "sh", "-c", "! grep -qv ^0000000000000000 /proc/kallsyms")
needs_perf = pytest.mark.skipif(shutil.which("perf") is None, reason="no perf to compare with")

CALLS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
static char data[65536];
static int zero, ends[2];
static volatile long n;
static void in_zero(void) { for (int i = 0; i < 20; i++) if (!read(zero, data, sizeof data)) _exit(1); }
static void in_random(void) { for (int i = 0; i < 4; i++) if (getrandom(data, 4096, 0) < 0) _exit(1); }
static void in_pipe(void)
{
    for (int i = 0; i < 10; i++)
        if (write(ends[1], data, 16384) < 0 || read(ends[0], data, 16384) < 0) _exit(1);
}
static void in_user(void) { for (int i = 0; i < 10000; i++) n++; }
static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
__attribute__((noinline)) void spend(double seconds, void (*work)(void))
{
    for (double end = now() + seconds; now() < end;) work();
}
int main(void)
{
    zero = open("/dev/zero", O_RDONLY);
    if (pipe(ends)) return 1;
    puts("ready"); fflush(stdout);
    for (;;) { spend(.0041, in_zero); spend(.003, in_random); spend(.002, in_pipe); spend(.001, in_user); }
}
"""
SHARES = {"in_zero": 41, "in_random": 30, "in_pipe": 20, "in_user": 10}
WRAPPERS = {"in_zero": {"read"}, "in_random": {"getrandom"}, "in_pipe": {"read", "write"}, "in_user": set()}
IN_A_CALL = re.compile("syscall|system_call|svc")  # part of the outermost functions of a system call
SIGMAS, BLUR = 4.0, 0.01  # blur: the last turn of a phase is longer than its time
SAMPLES, RATE = 2000, 1000
MIN_WIDTH = 0.005  # share of the samples of a kernel function that is compared


@pytest.fixture(name="calls", scope="module")
def _calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("calls"), "calls", CALLS, "-fno-inline", "-rdynamic")


def shares(profile: Profile) -> dict[str, float]:
    """Return the share of the samples of each kernel function, alone or with its callees."""
    found: Counter[str] = Counter()
    for key, count in profile.counts.items():
        found.update(dict.fromkeys({place.kernel for place in key.locations if place.kernel}, count))
    return {name: count / profile.stats.samples for name, count in found.items()}


@contextmanager
def perf_record(pid: int, data: Path) -> Iterator[None]:
    """Record by perf, from an acknowledged start until the end of the block."""
    (control, commands), (answers, acknowledge) = os.pipe(), os.pipe()
    perf = [
        "perf",
        "record",
        "-q",
        "-g",
        "-e",
        "task-clock",
        "-c",
        "1003003",
        "-p",
        str(pid),
        "-o",
        str(data),
    ]
    perf += ["-D", "-1", f"--control=fd:{control},{acknowledge}"]
    with subprocess.Popen(perf, pass_fds=(control, acknowledge), stdout=subprocess.DEVNULL) as child:
        try:
            os.write(commands, b"enable\n")
            assert os.read(answers, 16).startswith(b"ack")
            yield
        finally:
            child.send_signal(signal.SIGINT)
            assert child.wait() in (0, -signal.SIGINT)
            for descriptor in (control, commands, answers, acknowledge):
                os.close(descriptor)


def shares_of_perf(data: Path) -> tuple[dict[str, float], int]:
    """Return the share of each kernel function in a recording by perf, and its number of samples."""
    script = ["perf", "script", "-i", str(data), "-F", "ip,sym"]
    done = subprocess.run(script, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    found: Counter[str] = Counter()
    blocks = [
        [line.split() for line in block.splitlines()] for block in done.stdout.split("\n\n") if block.strip()
    ]
    for block in blocks:
        found.update({words[1] for words in block if words and len(words[0]) == 16 and words[0][0] == "f"})
    return {name: count / len(blocks) for name, count in found.items()}, len(blocks)


def noise(share: float, *numbers: int) -> float:
    return SIGMAS * sqrt(share * (1 - share) * sum(1 / number for number in numbers))


def split(stack: str) -> tuple[str, str, list[str]]:
    """Return the phase of a stack, its innermost function outside the kernel, and its kernel functions."""
    frames = stack.split(";")
    user = [frame for frame in frames if not frame.endswith("_[k]")]
    assert frames[: len(user)] == user
    [phase] = SHARES.keys() & user or [""]
    return phase, user[-1], frames[len(user) :]


def counts_by_phase(stacks: dict[str, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        found[split(stack)[0]] += count
    return found


@needs_timers
@needs_symbols
def test_kernel_functions_follow_the_function_that_calls_the_kernel(calls: Path) -> None:
    """A sample in the kernel has the registers that the thread had when it entered the kernel."""
    with started(calls) as target:
        profile = record_by_perf(target.pid, SAMPLES, rate=RATE)
    stacks = parse_folded(sfsample.folded(profile).encode())
    in_calls: Counter[str] = Counter()
    for stack, count in stacks.items():
        phase, user, kernel = split(stack)
        if phase and any(map(IN_A_CALL.search, kernel)):
            in_calls[phase] += count
            assert user in {*WRAPPERS[phase], "clock_gettime"}, stack
    by_phase = counts_by_phase(stacks)
    total = by_phase.total()
    for phase, part in SHARES.items():
        share = part / sum(SHARES.values())
        assert abs(by_phase[phase] / total - share) <= noise(share, total) + BLUR, by_phase
        assert (in_calls[phase] > by_phase[phase] / 2) == bool(WRAPPERS[phase]), (in_calls, by_phase)


@pytest.mark.skipif(ARCH is not AMD64, reason="elsewhere a stop does not show whether a system call ran")
def test_stopped_thread_has_the_name_of_its_system_call(calls: Path) -> None:
    with started(calls) as target:
        flags = (target.pid, *STOPPING, "-r", 500)
        named = sampled(*flags, enough=lambda done: len(counts_by_phase(done.stacks()).keys() & SHARES) == 4)
        plain = sampled(*flags, "--no-kernel")
    seen = {(phase, user, *kernel) for phase, user, kernel in map(split, named.stacks()) if phase}
    expected = {(phase, name, f"sys_{name}_[k]") for phase, names in WRAPPERS.items() for name in names}
    assert {stack for stack in seen if len(stack) > 2 and stack[1] != "clock_gettime"} <= expected
    assert {stack[0] for stack in seen if len(stack) > 2} >= {"in_zero", "in_random", "in_pipe"}
    assert all("_[k]" not in stack for stack in plain.stacks())


@pytest.mark.skipif(ARCH is not AMD64, reason="elsewhere a stop does not show whether a system call ran")
def test_python_functions_alone_have_no_kernel_frames_unless_they_are_asked_for() -> None:
    with python("import os\ndef f():\n  while True: os.getrandom(65536)\nf()") as target:
        flags = (target.pid, *STOPPING, "--python", "only")
        alone = sampled(*flags, enough=lambda done: any("f (" in stack for stack in done.stacks()))
        both = sampled(
            *flags, "--kernel", enough=lambda done: any("_[k]" in stack for stack in done.stacks())
        )
    assert not any("_[k]" in stack for stack in alone.stacks())
    assert any(re.search(r";f \(.*\);sys_getrandom_\[k\]$", stack) for stack in both.stacks())


@needs_timers
@pytest.mark.skipif(not can_run(*HIDDEN), reason="needs root, setpriv, and a kernel that hides addresses")
def test_kernel_frames_are_left_out_on_request_and_without_permission(calls: Path) -> None:
    with started(calls) as target:
        flags = (target.pid, "--perf-events", "-r", RATE)
        without = sampled(*flags, "--no-kernel")
        hidden = sampled(*flags, wrapper=NO_SYSLOG)
    for done in (without, hidden):
        assert not any("_[k]" in stack for stack in done.stacks())
    assert [KERNEL_SYMBOLS_HIDDEN in line for done in (without, hidden) for line in done.err].count(True) == 1
    assert any(KERNEL_SYMBOLS_HIDDEN in line for line in hidden.err)


@needs_timers
@needs_symbols
@needs_perf
@pytest.mark.skipif(ARCH is not AMD64, reason="addresses of the kernel are told by their first digit")
def test_kernel_functions_have_the_shares_that_perf_finds(calls: Path, tmp_path: Path) -> None:
    data = tmp_path / "perf.data"
    with started(calls) as target, perf_record(target.pid, data):
        profile = record_by_perf(target.pid, SAMPLES, rate=RATE)
    found, (expected, number) = shares(profile), shares_of_perf(data)
    widest = sorted(expected, key=expected.__getitem__)[-10:]
    assert all(expected[name] > MIN_WIDTH for name in widest)
    for name in widest:
        tolerance = noise(expected[name], number, profile.stats.samples) + BLUR
        assert abs(found.get(name, 0) - expected[name]) <= tolerance, (name, found, expected)
