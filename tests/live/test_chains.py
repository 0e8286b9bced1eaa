"""Every sample of every scenario has the stack that the target says it has.

Law: the names of all frames, the stop reason and the label of every frame are asserted for every single
sample, against the chain that the target itself prints; for each SFrame generation, at fixed and random
addresses, with and without a dynamic loader.
"""

import re

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.unwind.unwinder import DEFAULT_STEPPERS
from tests.live.chains import Checker, Token, listed_chains
from tests.live.recording import fewer, record_samples
from tests.live.targets import (
    ARCH,
    GENERATIONS,
    Target,
    assert_untraced,
    fixture,
    running,
    states,
    tids,
    wait_until,
)

pytestmark = pytest.mark.live

_PLAIN = ("recursion", "leaf", "frame", "bigframe", "drap", "noreturn", "deep", "plt", "library", "qsort",
         "framepointer", "signal", "signal-main", "nested-signal", "nullcall")  # fmt: skip
PLAIN = tuple(
    name for name in _PLAIN if name in listed_chains(str(fixture("v3")))
)  # not every machine has them all
ASLEEP = ("sleep", "epoll")
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)

binaries = pytest.mark.parametrize(
    "program",
    [pytest.param(str(fixture(g, b)), id=f"{g}-{b}") for g in GENERATIONS for b in ("target", "target-nopie")]
    + [pytest.param(str(p), id=f"v3-{p.name}") for p in [fixture("v3", "target-static")] if p.exists()],
)
generations = pytest.mark.parametrize("program", [str(fixture(g)) for g in GENERATIONS], ids=GENERATIONS)


def chains_of(program: str, scenario: str, target: Target) -> dict[int, list[list[Token]]]:
    """The chain of the main thread, and those that any other thread may have."""
    main, *others = listed_chains(program)[scenario]
    return {tid: [main] if tid == target.pid else others for tid in tids(target.pid)}


def seen_in(profile: sfsample.Profile) -> set[int]:
    """The threads of which there are samples."""
    return {key.tid for key in profile.counts}


def check_folded(profile: sfsample.Profile, checker: Checker) -> None:
    """The text has the same frames, in the same order, as the values."""
    lines = sfsample.folded(profile).splitlines()
    assert sum(int(line.rpartition(" ")[2]) for line in lines) == profile.stats.samples
    told = {tuple(line.rpartition(" ")[0].split(";")[1:]) for line in lines}
    expected = {tuple(place.name for place in checker.places(key)) for key in profile.counts}
    assert {tuple(None if name[0] == "[" else name for name in line) for line in told} == expected


def check_dump(target: Target, checker: Checker, capture: Capture = Capture.STOPPED) -> None:
    """A dump's frames carry their labels one by one."""
    dump = sfsample.dump(target.pid)
    thread = dump.threads[0]
    assert thread.capture is capture, thread.error
    assert thread.stack.stop_reason is StopReason.OUTERMOST
    places = [checker._place(module, module.vaddr(frame.pc), module.vaddr(frame.lookup_pc)) if module
              else checker._place(None, frame.pc, frame.lookup_pc)
              for frame, module in zip(thread.stack.frames, thread.modules, strict=True)]  # fmt: skip
    assert [frame.found for frame in thread.stack.frames] == checker.labels(places[::-1])


@binaries
@pytest.mark.parametrize("scenario", PLAIN)
def test_a_running_thread(program, scenario):
    checker = Checker(program)
    with running(program, scenario) as target:
        profile = record_samples(target.pid)
        check_dump(target, checker)
        checker.check(profile, chains_of(program, scenario, target))
        check_folded(profile, checker)


@binaries
@pytest.mark.parametrize("scenario", ASLEEP)
def test_a_sleeping_thread(program, scenario):
    checker = Checker(program)
    with running(program, scenario) as target:
        wait_until(lambda: states(target.pid) == {"S"}, "asleep")
        profile = record_samples(target.pid, mode="wall")
        check_dump(target, checker, Capture.READ)
        checker.check(profile, chains_of(program, scenario, target))
        check_folded(profile, checker)


@binaries
@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_threads(program, mode):
    with running(program, "threads") as target:
        wait_until(lambda: "S" in states(target.pid), "the main thread sleeps, the others never do")
        chains = chains_of(program, "threads", target)
        workers = {tid: chain for tid, chain in chains.items() if tid != target.pid}
        # each worker is one kind of worker, and the name that it gave itself says which
        kinds = dict(zip("0123", next(iter(workers.values())), strict=True))
        for tid in workers:
            with open(f"/proc/{target.pid}/task/{tid}/comm", encoding="utf-8") as file:
                chains[tid] = [kinds[file.read().strip().removeprefix("worker-")]]
        everybody = set(chains) if mode == "wall" else set()  # one that waits for a processor takes its time
        profile = record_samples(target.pid, fewer(100), mode=mode, until=lambda so: everybody <= seen_in(so))
        Checker(program).check(profile, chains)
        seen = seen_in(profile)
        assert len(workers) == 4
        assert seen == set(chains) if mode == "wall" else seen <= set(workers)
        names = {name for thread, name in profile.threads.items() if thread.tid in seen - {target.pid}}
        assert names <= {f"worker-{n}" for n in range(4)}


@pytest.mark.parametrize("binary", ["target", "target-nopie"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_library_that_comes_while_recording(generation, binary):
    """The index of modules was made before the library was there."""
    program = str(fixture(generation, binary))
    with running(program, "dlopen") as target:

        def load() -> None:
            target.send()
            target.await_ready()

        profile = record_samples(target.pid, begun=load)
        Checker(program).check(profile, chains_of(program, "dlopen", target))


@binaries
def test_the_child_of_a_vfork(program):
    """It runs on its parent's stack; the parent, in state D, cannot be stopped: it is read.

    Where a call leaves the return address in a register, only a stop would tell who has called vfork; but in
    one program all calls of it can be seen.
    """
    whole = ARCH.pushed_ra or program.endswith("static")
    callers = "_start;.*;vfork_caller" if whole else r"\[truncated: register_unknown]"
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


@generations
@pytest.mark.parametrize("scenario", [*PLAIN, *ASLEEP])
def test_eh_frame_alone_tells_the_same(program, scenario):
    """Two tables, written by different code of the toolchain, describe one stack."""
    with running(program, scenario) as target:
        mode = "wall" if scenario in ASLEEP else "cpu"
        profile = record_samples(target.pid, mode=mode, steppers=NO_SFRAME)
        Checker(program).check(profile, chains_of(program, scenario, target), labels=False)
        assert profile.stats.frames[Found.SFRAME] == 0
        both = record_samples(target.pid, mode=mode, steppers=DEFAULT_STEPPERS)
        if scenario not in ("plt", *ASLEEP):  # there the instants differ
            assert addresses(both) == addresses(profile)


def addresses(profile: sfsample.Profile) -> set[tuple[tuple[str | None, int], ...]]:
    """The callers of each stack, as places in files."""
    return {tuple((place.module and place.module.path, place.address) for place in key.locations[1:])
            for key in profile.counts}  # fmt: skip
