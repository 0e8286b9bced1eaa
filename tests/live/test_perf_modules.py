"""Perf sampling uses the code that was mapped when the kernel made the sample.

Libraries, and programs after exec, may have changed until sfsample reads the sample.
"""

import re
import subprocess
import sys
import time

import pytest

import sfsample
from sfsample.process.process import LiveProcess
from tests.live.chains import Checker
from tests.live.compiled import HOST, LOOP_TURNS, compile_c, needs_gcc, started
from tests.live.perf_recording import REPLACED, SAMPLES, needs_timers, perf_process_of, record_by_perf
from tests.live.targets import HANG_S, fixture, running
from tests.live.targets import started as begun
from tests.live.test_chains import chains_of
from tests.live.test_changing_modules import TWIN, TWINS

pytestmark = [pytest.mark.live, needs_timers]


@needs_gcc
def test_row_of_unloaded_library_is_not_used(tmp_path):
    """Many libraries change between two reads of the ring buffers; samples of unknown code count as lost."""
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", TWIN.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "twins", TWINS, "-ldl")) as process:
        profile = record_by_perf(
            process.pid, until=lambda profile: profile.stats.problems[REPLACED] > SAMPLES, kernel=False
        )
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    own = {"a_burn", "b_burn", "a_entry", "b_entry"}
    inside = {stack.partition(";main;")[2] for stack in stacks if own & set(stack.split(";"))}
    assert inside <= {"a_entry;a_burn", "b_entry;b_burn", "a_entry", "b_entry"}
    assert profile.stats.problems[REPLACED] > SAMPLES


# Runs for about 10 ms, so that many libraries change between two reads of the ring buffers.
BRIEF = TWIN.replace("NAME_entry", "entry").replace(str(LOOP_TURNS // 5), "10000000")


@needs_gcc
@pytest.mark.extended
def test_library_is_not_taken_for_its_predecessor(tmp_path):
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", BRIEF.replace("NAME", name), "-shared", "-fPIC")
    with started(compile_c(tmp_path, "host", HOST, "-ldl")) as process:
        profile = record_by_perf(process.pid, 3 * SAMPLES)
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    wrong = [stack for stack in stacks if re.search("run_a;.*b_burn|run_b;.*a_burn", stack)]
    assert not wrong
    assert any("a_burn" in stack for stack in stacks)


# Runs until a byte comes on standard input.
PATIENT = """
#include <poll.h>
#include <stdio.h>
static volatile long n;
__attribute__((noinline)) void NAME_burn(void) { for (long i = 0; i < 1000000; i++) n++; }
void entry(void) { for (struct pollfd in = {0, POLLIN}; !poll(&in, 1, 0);) NAME_burn(); getchar(); }
"""


@needs_gcc
def test_library_that_was_loaded_while_timers_were_off_is_known(tmp_path):
    """The limit of overhead stops the timers.  The test takes 0.7 s without a sample as the sign."""
    for name in "ab":
        compile_c(tmp_path, f"{name}.so", PATIENT.replace("NAME", name), "-shared", "-fPIC")
    program, pipe = compile_c(tmp_path, "host", HOST, "-ldl"), subprocess.PIPE
    with subprocess.Popen([program], cwd=tmp_path, stdin=pipe, stdout=pipe, bufsize=0) as process:
        assert process.stdout.readline() == b"ready\n"
        seen, sent = [(0, 0.0)], []

        def until(profile):
            stats, now = profile.stats, time.perf_counter()
            if stats.samples > seen[-1][0]:
                seen.append((stats.samples, now))
            elif stats.samples and not sent and now > seen[-1][1] + 0.7:
                process.stdin.write(b"\n")
                sent.append(stats.samples)
            return bool(sent) and stats.samples > sent[0]

        profile = record_by_perf(process.pid, 1, rate=1000, max_overhead=0.003, until=until)
        process.kill()
    stacks = [line.rpartition(" ")[0] for line in sfsample.folded(profile).splitlines()]
    assert not [stack for stack in stacks if re.search("run_a;.*b_burn|run_b;.*a_burn", stack)]


EXEC = """
import os, sys
def inner():
    n = 0
    while n < {turns}: n += 1
inner()
os.execv(sys.argv[1], [sys.argv[1], "leaf", sys.argv[2]])
"""


def test_program_after_exec_has_its_own_stacks():
    """The recording also has the start of the second program; only the stacks after that are compared."""
    program = str(fixture("v3"))
    words = [sys.executable, "-c", EXEC.format(turns=10_000_000 // (SAMPLES // 10)), program, "{fd}"]
    with begun(words) as target:
        profile = record_by_perf(target.pid, until=lambda profile: "leaf_spin" in sfsample.folded(profile))
        checker, [[chain]] = Checker(program), chains_of(program, "leaf", target).values()
        target.assert_unharmed()
    stacks = [checker.places(key) for key in profile.counts if _base(key) == "target"]
    spun = [places for places in stacks if "leaf_spin" in {place.name for place in places}]
    assert spun
    assert [checker.disagreement(places, chain) for places in spun] == [None] * len(spun)


def _base(key):
    """Return the program in which a stack begins."""
    module = key.locations[-1].module if key.locations else None
    return module.path.rpartition("/")[2] if module else ""


def test_vdso_is_read_before_the_process_ends():
    """The vdso is in no file, and the last samples are unwound after the end of the process."""
    with running(fixture("v3"), "leaf", ends=True) as target:
        process = LiveProcess(target.pid, attach=False)
        perf_process = perf_process_of(process)
        perf_process.begin()
        target.process.kill()
        target.process.wait(HANG_S)
        vdso = next(mapping for mapping in process.modules.mappings if mapping.path == "[vdso]")
        assert process.modules.find(vdso.start) is not None
        process.close()
