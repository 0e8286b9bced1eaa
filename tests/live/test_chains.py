"""Every sample of every scenario has the stack that the target itself states.

Each test asserts the names of all frames, the stop reason and how each frame was found, for each sample: for
each SFrame version, with fixed and random load addresses, with and without a dynamic loader.
"""

import re
from collections.abc import Callable

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.unwind.unwinder import DEFAULT_STEPPERS
from tests.live.chains import Checker, Token, listed_chains
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import dumped, fewer, record_samples
from tests.live.targets import (
    ARCH,
    EACH_GENERATION,
    GENERATIONS,
    Target,
    assert_untraced,
    fixture,
    running,
    states,
    tids,
    wait_until,
)

pytestmark = [pytest.mark.live, pytest.mark.any_load]

_PLAIN = ("recursion", "leaf", "frame", "bigframe", "drap", "noreturn", "deep", "plt", "library", "qsort",
         "framepointer", "signal", "signal-main", "nested-signal", "nullcall")  # fmt: skip
PLAIN = tuple(name for name in _PLAIN if name in listed_chains(str(fixture("v3"))))  # some need x86-64
ASLEEP = ("sleep", "epoll")
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)

BUILDS = [
    *((generation, name) for generation in GENERATIONS for name in ("target", "target-nopie")),
    *([("v3", "target-static")] if fixture("v3", "target-static").exists() else []),
]
NEWEST = GENERATIONS[-1]


def programs(default: Callable[[str, str], bool]) -> pytest.MarkDecorator:
    """Parametrize `program` by every build; those for which `default` is false are extended."""
    return pytest.mark.parametrize(
        "program",
        [
            pytest.param(
                str(fixture(generation, name)),
                id=f"{generation}-{name}",
                marks=[] if default(generation, name) else [pytest.mark.extended],
            )
            for generation, name in BUILDS
        ],
    )


every_version = programs(lambda generation, name: generation == NEWEST or name == "target")
# the version of SFrame makes no difference here
newest_version = programs(lambda generation, _name: generation == NEWEST)


def chains_of(program: str, scenario: str, target: Target) -> dict[int, list[list[Token]]]:
    """Return the chain of the main thread, and those that any other thread may have."""
    main, *others = listed_chains(program)[scenario]
    return {tid: [main] if tid == target.pid else others for tid in tids(target.pid)}


def sampled_threads(profile: sfsample.Profile) -> set[int]:
    """Return the threads that have samples."""
    return {key.tid for key in profile.counts}


def check_folded(profile: sfsample.Profile, checker: Checker) -> None:
    """Assert that the folded text has the frames of the profile, in the same order."""
    lines = sfsample.folded(profile).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == profile.stats.samples
    written = {tuple(line.rpartition(" ")[0].split(";")[1:]) for line in lines}
    expected = {tuple(place.name for place in checker.places(key)) for key in profile.counts}
    assert {tuple(None if name[0] == "[" else name for name in line) for line in written} == expected


def check_dump(target: Target, checker: Checker, capture: Capture = Capture.STOPPED) -> None:
    """Assert that a dump states for each frame how it was found."""
    thread = dumped(target.pid).threads[0]
    assert thread.capture is capture, thread.error
    assert thread.stack.stop_reason is StopReason.OUTERMOST
    places = [checker._place(module, module.vaddr(frame.pc), module.vaddr(frame.lookup_pc)) if module
              else checker._place(None, frame.pc, frame.lookup_pc)
              for frame, module in zip(thread.stack.frames, thread.modules, strict=True)]  # fmt: skip
    assert [frame.found for frame in thread.stack.frames] == checker.labels(places[::-1])


@every_version
@pytest.mark.parametrize("scenario", PLAIN)
def test_running_thread_has_the_stated_stack(program, scenario):
    checker = Checker(program)
    with running(program, scenario) as target:
        profile = record_samples(target.pid)
        check_dump(target, checker)
        checker.check(profile, chains_of(program, scenario, target))
        check_folded(profile, checker)


@newest_version
@pytest.mark.parametrize("scenario", ASLEEP)
def test_sleeping_thread_has_the_stated_stack(program, scenario):
    checker = Checker(program)
    with running(program, scenario) as target:
        wait_until(lambda: states(target.pid) == {"S"}, "asleep")
        profile = record_samples(target.pid, mode="wall")
        check_dump(target, checker, Capture.READ)
        checker.check(profile, chains_of(program, scenario, target))
        check_folded(profile, checker)


@newest_version
@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_every_thread_has_the_stated_stack(program, mode):
    with running(program, "threads") as target:
        wait_until(lambda: "S" in states(target.pid), "the main thread sleeps, the others never do")
        chains = chains_of(program, "threads", target)
        workers = {tid: chain for tid, chain in chains.items() if tid != target.pid}
        # each worker is one kind of worker, and the name that it gave itself says which
        kinds = dict(zip("0123", next(iter(workers.values())), strict=True))
        for tid in workers:
            with open(f"/proc/{target.pid}/task/{tid}/comm", encoding="utf-8") as file:
                chains[tid] = [kinds[file.read().strip().removeprefix("worker-")]]
        required = set(chains) if mode == "wall" else set()  # a thread that waits for a CPU gets few samples
        profile = record_samples(
            target.pid, fewer(100), mode=mode, until=lambda profile: required <= sampled_threads(profile)
        )
        Checker(program).check(profile, chains)
        seen = sampled_threads(profile)
        assert len(workers) == 4
        assert seen == set(chains) if mode == "wall" else seen <= set(workers)
        names = {name for thread, name in profile.threads.items() if thread.tid in seen - {target.pid}}
        assert names <= {f"worker-{n}" for n in range(4)}


@pytest.mark.parametrize("binary", ["target", "target-nopie"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_library_loaded_during_a_recording_is_found(generation, binary):
    """sfsample has read the module map before the library is loaded."""
    program = str(fixture(generation, binary))
    with running(program, "dlopen") as target:

        def load() -> None:
            target.send()
            target.await_ready()

        profile = record_samples(target.pid, begun=load)
        Checker(program).check(profile, chains_of(program, "dlopen", target))


# vfork keeps its return address in a register during the system call
VFORK = """
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) void spawn(void) { if (!vfork()) _exit(0); wait(0); __asm__ volatile(""); }
int main(void) { puts("ready"); fflush(stdout); for (;;) spawn(); }
"""


@newest_version
def test_child_of_a_vfork_has_the_stated_stack(program):
    """The child runs on its parent's stack; the parent is in state D and cannot be stopped, so it is read.

    Where a call leaves the return address in a register, only a stop can find the caller of vfork, except in
    a static program: there sfsample sees all calls of vfork.
    """
    is_whole = ARCH.pushed_ra or program.endswith("static")
    callers = "_start;.*;vfork_caller" if is_whole else r"\[truncated: register_unknown]"
    with running(program, "vfork") as target:
        with open(f"/proc/{target.pid}/task/{target.pid}/children", encoding="utf-8") as file:
            child = int(file.read())
        profile = record_samples(child)
        _, chain = listed_chains(program)["vfork"]
        Checker(program).check(profile, {child: [chain]})
        assert_untraced(child)

        wait_until(lambda: states(target.pid) == {"D"}, "the parent waits")
        profile = record_samples(target.pid, 10, mode="wall")
        assert profile.stats.captures.keys() == {Capture.READ, Capture.REUSED}
        assert re.fullmatch(rf"target\S*;{callers};\S*vfork \d+\n", sfsample.folded(profile))
        thread = sfsample.dump(target.pid).threads[0]
        assert (thread.state, thread.capture, thread.stop_ns) == ("D", Capture.READ, None)
    wait_until(lambda: states(child) <= {"Z"}, "the child ended with its parent")


@needs_gcc
def test_stack_inside_vfork_ends(tmp_path):
    with started(compile_c(tmp_path, "forks", VFORK)) as process:
        profile = record_samples(process.pid, fewer(60))
    assert profile.stats.stacks["no_progress"] == 0


@pytest.mark.parametrize("generation", EACH_GENERATION)
@pytest.mark.parametrize("scenario", [*PLAIN, *ASLEEP])
def test_eh_frame_alone_gives_the_same_stack(generation, scenario):
    program = str(fixture(generation))
    with running(program, scenario) as target:
        mode = "wall" if scenario in ASLEEP else "cpu"
        profile = record_samples(target.pid, mode=mode, steppers=NO_SFRAME)
        Checker(program).check(profile, chains_of(program, scenario, target), labels=False)
        assert profile.stats.frames[Found.SFRAME] == 0
        both = record_samples(target.pid, mode=mode, steppers=DEFAULT_STEPPERS)
        if scenario not in ("plt", *ASLEEP):  # a thread of these is sampled at different instructions
            assert addresses(both) == addresses(profile)


def addresses(profile: sfsample.Profile) -> set[tuple[tuple[str | None, int], ...]]:
    """Return the callers of each stack, as addresses in files."""
    return {tuple((place.module and place.module.path, place.address) for place in key.locations[1:])
            for key in profile.counts}  # fmt: skip
