"""Targets change while they are sampled: threads come and go, the program calls exec, the process ends.

A recording survives each change, keeps its samples, and has no wrong stack.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.formats.elf.image import ElfImage
from sfsample.process.capture_sleeping import read_sleeping_thread
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.permission.check import check
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.stack_copy import StackCopy
from sfsample.process.syscall_names import syscall_name
from sfsample.process.thread import Thread
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.profile import Profile
from sfsample.recording.sample import StackKey
from tests.live.chains import Checker, listed_chains, own_names
from tests.live.recording import fewer, record_samples
from tests.live.targets import (
    ARCH,
    EACH_GENERATION,
    HANG_S,
    fixture,
    running,
    started,
    states,
    status,
    tids,
    tracers,
    wait_until,
)

pytestmark = [pytest.mark.live, pytest.mark.any_load]

WALL_500 = sfsample.RecordOptions(rate=500, mode="wall")


def is_in_new_thread(key: StackKey) -> bool:
    """Whether the stack is that of clone3's child before its first instruction.

    glibc ends the FDE of clone3 at its `syscall` instruction ("in the child the unwind info will be wrong",
    sysdeps/unix/sysv/linux/x86_64/clone3.S) and begins the next one at thread_start, so there is no row.
    """
    if len(key.locations) != 1 or key.stop_reason is not StopReason.NO_ROW:
        return False
    module, address, _ = key.locations[0]
    return module is not None and module.code(module.address(address) - 2, 2) == b"\x0f\x05"  # syscall


@pytest.mark.parametrize("generation", EACH_GENERATION)
@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_threads_come_and_go(generation, mode):
    """Threads end before they are stopped or copied; every stack is whole.

    A worker may also be in libc's code before and after churn_thread, which the chain allows.
    """
    program = str(fixture(generation))
    with running(program, "churn") as target:
        profile = record_samples(
            target.pid, fewer(1500), rate=1000, mode=mode, until=lambda profile: profile.stats.threads > 10
        )
        unborn = [key for key in profile.counts if is_in_new_thread(key)]
        lost = sum(profile.counts.pop(key) for key in unborn)
        main, worker = listed_chains(program)["churn"]
        chains = {key.tid: [main] if key.tid == target.pid else [worker] for key in profile.counts}
        Checker(program).check(profile, chains, labels=False)
        stats = profile.stats
        assert stats.stacks == Counter({StopReason.OUTERMOST: stats.samples - lost, StopReason.NO_ROW: lost})
        assert stats.threads > 10
        too_late = stats.problems["not captured: the recording ended before its turn"]  # in the last tick
        assert stats.captures[Capture.FAILED] == too_late


# -- exec


def check_generations_of_programs(profile: Profile, program: str) -> set[str]:
    """Assert that no sample mixes the programs before and after exec; return the scenarios with whole stacks.

    The recording also has samples at the end of execve and at the start of the loader, which no chain
    describes: there, only the functions of the program are compared.
    """
    checker = Checker(program)
    chains = {scenario: listed_chains(program)[scenario][0] for scenario in ("exec", "leaf")}
    whole = set()
    for key in profile.counts:
        places = checker.places(key)
        own = [place.name for place in places if place.name in own_names()]
        right = {s for s, chain in chains.items() if checker.disagreement(places, chain) is None}
        whole |= right
        if not right:
            assert own in ([], ["main"], ["main", "exec_waiter"]), own
    return whole


def test_exec_between_two_samples():
    program = str(fixture("v3"))
    with running(program, "exec", "leaf", "{fd}") as target:
        profile = sfsample.Profile(500)
        calls, before = [], []

        def change() -> bool:
            calls.append(None)
            # without a pending stop, which would last as long as this function waits
            if not before and len(calls) >= 60 and profile.counts and not tracers(target.pid):
                before.append({*profile.counts})
                target.send()
                target.await_ready()
            return len(calls) > 200 and bool(before) and not profile.counts.keys() <= before[0]

        sfsample.record(target.pid, 60, WALL_500, should_stop=change, profile=profile)
        assert profile.stats.ended_by == "signal"
        chains = [listed_chains(program)["exec"][0], listed_chains(program)["leaf"][0]]
        Checker(program).check(profile, {target.pid: chains})
        stacks = {key.locations[-2:] for key in profile.counts}
        assert len(profile.counts) >= 2, stacks


@pytest.mark.parametrize("rate", [500, 5000])
def test_exec_at_any_time(rate):
    """The recording goes on during each of 20 execs."""
    program = str(fixture("v3"))
    words = ["exec", "{fd}"] * 20
    with started([program, *words, "leaf", "{fd}"]) as target:
        ready, calls, execs = [], [], []

        def change() -> bool:
            ready.extend(target.reader.available())
            calls.append(None)
            if len(calls) % 7 == 0 and len(execs) < len(ready) <= 20:  # some samples before each exec
                execs.append(None)
                target.send()
            return len(ready) == 21

        options = sfsample.RecordOptions(rate=rate, mode="wall")
        profile = sfsample.record(target.pid, 60, options, should_stop=change)
        assert ready == [f"ready {target.pid}"] * 21
        later = record_samples(target.pid)
        target.assert_unharmed()
        assert "exec" in check_generations_of_programs(profile, program)
        Checker(program).check(later, {target.pid: listed_chains(program)["leaf"]})


def test_exec_of_program_at_the_same_addresses(tmp_path):
    """Without address randomization exec maps the second program at the address of the first.

    It is `workload`, under the name that readlink gives for the first program once that file is unlinked.
    """
    before, after = tmp_path / "target", tmp_path / "target (deleted)"
    shutil.copy(fixture("v3"), before)
    shutil.copy(fixture("v3", "workload"), after)
    shutil.copy(fixture("v3", "libcallee.so"), tmp_path)
    with started(["setarch", "--addr-no-randomize", str(before), "exec", "{fd}", "0"]) as target:
        target.await_ready()
        before.unlink()
        base, workers = mapped_at(target.pid), {"ingest", "report", "archive"}
        profile = sfsample.Profile(500)
        calls, execs = [], []

        def change() -> bool:
            calls.append(None)
            # without a pending stop, which would last as long as this function waits
            if not execs and len(calls) >= 20 and profile.counts and not tracers(target.pid):
                execs.append(None)
                target.send()
                wait_until(lambda: names(target.pid) >= workers, "the other program has its threads")
                assert mapped_at(target.pid) == base
            return len(calls) > 100 and workers <= {*profile.threads.values()}

        sfsample.record(target.pid, 60, WALL_500, should_stop=change, profile=profile)
        assert profile.stats.ended_by == "signal"
        target.assert_unharmed()
        assert workers <= set(profile.threads.values())
        workload = ElfImage(after.read_bytes(), "workload")
        for key in profile.counts:
            if key.tid == target.pid:
                continue
            assert key.stop_reason is StopReason.OUTERMOST
            own = [place.module for place in key.locations
                   if place.module and place.module.path.startswith(str(tmp_path))]  # fmt: skip
            assert {module.build_id for module in own} <= {workload.build_id}
        for key in profile.counts:
            if key.tid == target.pid:
                functions = {place.name for place in Checker(str(before)).places(key)}
                assert "main" in functions
                modules = [place.module for place in key.locations if place.module]
                new = any(module.build_id == workload.build_id for module in modules)
                assert ("exec_waiter" in functions) != new


def names(pid: int) -> set[str]:
    """Return the names of its threads."""
    return {status(pid, tid).get("Name", "") for tid in tids(pid)}


def mapped_at(pid: int) -> str:
    """Return the first mapped address of a program."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        return maps.readline().partition("-")[0]


@pytest.mark.parametrize("attempt", range(5))
def test_exec_by_another_thread_than_the_first(attempt):
    """The kernel gives the calling thread the id of the first one, even while sfsample holds the first."""
    program = str(fixture("v3"))
    code = """
import os, sys, threading
def change():
    sys.stdin.buffer.read(1)
    os.execv(sys.argv[1], [sys.argv[1], "leaf", sys.argv[2]])
threading.Thread(target=change).start()
os.write(int(sys.argv[2]), f"ready {os.getpid()}\\n".encode())
threading.Event().wait()
"""
    with started([sys.executable, "-c", code, program, "{fd}"]) as target:
        target.await_ready()
        changed = []

        def change() -> bool:
            if not changed:
                changed.append(len(tids(target.pid)))
                target.send()
            return bool(target.reader.available())

        options = sfsample.RecordOptions(rate=5000, mode="wall")
        sfsample.record(target.pid, 60, options, should_stop=change)
        assert changed == [2]
        later = record_samples(target.pid)
        target.assert_unharmed()
        Checker(program).check(later, {target.pid: listed_chains(program)["leaf"]})


# -- the end


def test_recording_ends_with_the_target():
    program = str(fixture("v3"))
    with running(program, "exit", 1, ends=True) as target:
        # perf sampling may also sample it in exit(3), after `main` has returned
        profile = sfsample.record(target.pid, 60, sfsample.RecordOptions(rate=1000, perf_events=False))
        assert profile.stats.ended_by == "target"
        assert profile.stats.samples >= 5
        Checker(program).check(profile, {target.pid: listed_chains(program)["exit"]}, labels=False)
        target.process.wait(HANG_S)


@pytest.mark.parametrize("rate", [200, 5000])
def test_recording_ends_when_the_target_is_killed(rate):
    program = str(fixture("v3"))
    with running(program, "threads", 4, ends=True) as target:
        profile = sfsample.Profile(rate)

        def kill() -> bool:
            if profile.stats.samples >= 5:
                os.kill(target.pid, signal.SIGKILL)
            return False

        options = sfsample.RecordOptions(rate=rate, mode="wall")
        sfsample.record(target.pid, HANG_S, options, profile=profile, should_stop=kill)
        assert profile.stats.ended_by == "target"


def test_first_thread_ends_and_others_are_sampled():
    """The first thread is a zombie then; sfsample samples the others."""
    code = """
import ctypes, os, sys, threading, time
def work():
    while leader_state() != "Z": time.sleep(0.001)
    os.write(int(sys.argv[1]), f"ready {os.getpid()}\\n".encode())
    while True: pass
def leader_state():
    return open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0]
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(int(sys.argv[2]), 0)
"""
    number = next(number for number in range(100) if syscall_name(number) == "exit")
    with started([sys.executable, "-c", code, "{fd}", str(number)]) as target:
        target.await_ready()
        profile = record_samples(target.pid, 20)
        assert {key.tid for key in profile.counts} == set(tids(target.pid)) - {target.pid}
        assert profile.stats.ended_by == "signal"
        assert target.process.poll() is None
        assert states(target.pid) <= {"Z", "R", "S"}


def test_process_that_has_ended_is_refused():
    with running(fixture("v3"), "leaf", ends=True) as target:
        target.process.kill()
        wait_until(lambda: states(target.pid) == {"Z"}, "it is a zombie")
        with pytest.raises(sfsample.NoSuchProcess, match="zombie"):
            sfsample.record(target.pid, 1)
        target.process.wait(HANG_S)
        with pytest.raises(sfsample.NoSuchProcess):
            sfsample.record(target.pid, 1)
        with pytest.raises(sfsample.NoSuchProcess):
            sfsample.dump(target.pid)


def test_process_that_ends_while_it_is_opened_is_refused(monkeypatch):
    """The kernel then reports thread group 0; sfsample once refused it as a thread of process 0."""
    with running(fixture("v3"), "leaf") as target:
        proc = ProcFs(target.pid)
        monkeypatch.setattr(proc, "status", lambda: {"Tgid": "0"})
        with pytest.raises(sfsample.NoSuchProcess):
            check(proc)
        proc.close()


def test_thread_that_has_ended_is_not_read():
    """sfsample once counted a thread that ended after its state was read as a kernel thread."""
    with subprocess.Popen(["true"]) as process:
        wait_until(lambda: states(process.pid) == {"Z"}, "it is a zombie")
        proc = ProcFs(process.pid)
        copy = StackCopy(process.pid, ARCH, lambda _sp: None, 4096)
        assert read_sleeping_thread(ARCH, copy, Thread(process.pid, proc.thread(process.pid))) is None
        proc.close()


def test_reused_id_of_another_process_is_not_sampled():
    """The target's thread ended between two reads, and its id was reused; sfsample once sampled it."""
    with running(fixture("v3"), "leaf") as first, running(fixture("v3"), "deep") as other:
        target = LiveProcess(first.pid)
        try:
            captured = TracerThread(lambda _: target.capture(target.thread(other.pid)), lambda: False).run()
        finally:
            target.close()
        assert isinstance(captured, NotCaptured)
        assert captured.reason is Reason.GONE
