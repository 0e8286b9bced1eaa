"""Stacks of perf sampling are those that the target itself states, and no thread is stopped.

What the kernel cannot copy in an interrupt is missing, and the stack says so.
"""

import pytest

from sfsample.core.stack import StopReason
from tests.live.chains import Checker
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.perf_recording import FULL, SAMPLES, needs_timers, record_by_perf
from tests.live.targets import HANG_S, fixture, python, running
from tests.live.test_chains import PLAIN, chains_of
from tests.live.test_interference import TRACER

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_timers]

# The interrupt copies from sp upwards, and not beyond a page that the thread has not touched yet.
ALTERNATE_STACKS = ("signal", "nested-signal")  # handlers run on another stack

UNTOUCHED_PAGES = ("bigframe",)

CUT_SHORT = (StopReason.BAD_MEMORY, StopReason.STACK_COPY_ENDED)


@pytest.mark.parametrize(
    "scenario", [name for name in PLAIN if name not in ALTERNATE_STACKS + UNTOUCHED_PAGES]
)
def test_every_stack_is_true(scenario):
    program = str(fixture("v3"))
    with running(program, scenario) as target:
        profile = record_by_perf(target.pid)
        Checker(program).check(profile, chains_of(program, scenario, target))
    assert set(profile.stats.problems) <= {FULL}


@pytest.mark.parametrize("scenario", [name for name in PLAIN if name in ALTERNATE_STACKS + UNTOUCHED_PAGES])
def test_stack_ends_where_the_interrupt_could_not_copy(scenario):
    program = str(fixture("v3"))
    with running(program, scenario) as target:
        profile = record_by_perf(target.pid)
        checker, [[chain]] = Checker(program), chains_of(program, scenario, target).values()
    names = [token.name for token in chain]
    for key in profile.counts:
        assert key.stop_reason in (StopReason.OUTERMOST, *CUT_SHORT)
        if key.stop_reason in CUT_SHORT:
            places = checker.places(key)
            found = [place.special or place.name for place in places]
            assert found == names[-len(found) :]


RAISING = """
#include <signal.h>
#include <stdio.h>
static void ignored(int number) { }
int main(void) {
    signal(SIGUSR1, ignored);
    puts("ready"); fflush(stdout);
    for (;;) raise(SIGUSR1);
}
"""


@needs_gcc
def test_interrupt_during_the_return_from_a_signal(tmp_path):
    """With stress-ng, a tenth of the stacks once ended after the system call of the trampoline (`no_row`).

    Now 9 of 48,000 are truncated: the kernel restores one register after the other, sp before pc.
    """
    with started(compile_c(tmp_path, "raising", RAISING)) as process:
        profile = record_by_perf(process.pid, 5 * SAMPLES)
    whole = sum(count for key, count in profile.counts.items() if key.stop_reason is StopReason.OUTERMOST)
    assert whole >= 0.98 * profile.stats.samples


def test_threads_have_their_own_stacks_and_names():
    program = str(fixture("v3"))
    with running(program, "threads") as target:
        chains = chains_of(program, "threads", target)
        workers = set(chains) - {target.pid}
        profile = record_by_perf(
            target.pid, until=lambda profile: workers <= {key.tid for key in profile.counts}
        )
        Checker(program).check(profile, chains)
    names = {name for thread, name in profile.threads.items() if thread.tid in workers}
    assert names == {f"worker-{n}" for n in range(4)}


def test_target_of_a_debugger_is_sampled():
    program = str(fixture("v3"))
    with running(program, "leaf") as target, python(TRACER, target.pid, "running") as debugger:
        assert debugger.stdout.readline() == b"tracing\n"
        profile = record_by_perf(target.pid)
        Checker(program).check(profile, chains_of(program, "leaf", target))
        debugger.stdin.close()
        debugger.wait(HANG_S)
