"""The held thread, or the whole process, ends during a pause.

Nothing that waits for that end (an execve of another thread, the parent process) waits for sfsample, and the
parent gets the true exit status.
"""

import os
import subprocess
import threading
import time
from collections import Counter
from functools import partial

import pytest

import sfsample
from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.snapshot import Capture
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.functions import find_function_starts
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.permission.check import check
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.ptrace import interrupt
from sfsample.process.stop_request import PATIENCE_NS, StopRequest, Tracer, reap_killed_tracees
from sfsample.process.tracer_thread import TracerThread
from sfsample.process.vm import CopyBuffer
from sfsample.unwind.steppers.code_analysis.flow import Flow
from sfsample.unwind.unwinder import Unwinder
from tests.builders.elf_builder import Load, elf
from tests.live.compiled import compile_c, needs_gcc
from tests.live.recording import fewer
from tests.live.targets import HANG_S, extended, fixture, running, states, status, wait_until

pytestmark = pytest.mark.live

TWO_THREADS = """
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static void *spin(void *unused)
{
    printf("%d\\n", gettid()); fflush(stdout);
    for (;;) ;
    return unused;
}
int main(void)
{
    pthread_t thread;
    char byte;
    pthread_create(&thread, 0, spin, 0);
    if (read(0, &byte, 1) == 1) execl("/bin/sleep", "sleep", "600", (char *)0);
    return 1;
}
"""


REPLACED = """
#include <unistd.h>
int main(int argc, char **argv)
{
    for (volatile int n = 0; n < 3000000; n++) ;
    return execv("/proc/self/exe", argv);
}
"""


@pytest.fixture
def requests_to_lose(monkeypatch):
    """Yield a list with one number: so many stop requests get lost, as in an execve(2) that ends threads."""
    left = [0]

    def interrupt_or_lose(tid):
        if not left[0]:
            return interrupt(tid)
        left[0] -= 1
        return True

    monkeypatch.setattr("sfsample.process.stop_request.interrupt", interrupt_or_lose)
    return left


@pytest.mark.parametrize("patience_ns", [0, PATIENCE_NS])
def test_lost_stop_request_is_repeated(requests_to_lose, patience_ns):
    with running(fixture("v3"), "leaf") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)
        requests_to_lose[0] = 1

        def stop(_stop):
            missed = tracer.stop(request, patience_ns)
            if missed is not None and not patience_ns:
                wait_until(lambda: tracer.has_stopped(request), "it has stopped")
                missed = tracer.stop(request)
            tracer.release()
            return missed

        assert TracerThread(stop, lambda: False).run() is None


@needs_gcc
def test_exec_before_the_stop_is_counted_once(requests_to_lose, tmp_path):
    """sfsample once kept a thread of each exec, which failed in every later tick."""
    with subprocess.Popen([compile_c(tmp_path, "replaced", REPLACED)]) as target:
        try:
            requests_to_lose[0] = 1 << 30
            options = sfsample.RecordOptions(mode="wall", perf_events=False)
            stats = sfsample.record(target.pid, 1.0, options).stats
        finally:
            target.kill()
    assert stats.captures[Capture.FAILED] <= stats.ticks


CODE = ElfImage(elf([Load(0x1000, bytes(range(256)) * 64)]), "invented")


def walk(process, snapshot):
    Unwinder(process.modules).walk(snapshot)


@pytest.mark.parametrize(
    "compute",
    [lambda *_: find_function_starts(CODE), lambda *_: [*Flow(lambda _: b"\x90").visits(0)], walk],
    ids=["function starts", "code analysis", "unwinding"],
)
def test_thread_that_stops_during_a_computation_is_captured_and_released(monkeypatch, compute):
    """The code of a large file takes 0.2 s."""
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    with running(fixture("v3"), "leaf") as target:
        process = LiveProcess(target.pid)

        def work(_stop):
            thread = process.thread(target.pid)
            before = process.capture(thread)
            while not isinstance(process.capture(thread, 0), NotCaptured):
                pass  # it stopped at once
            wait_until(lambda: states(target.pid) == {"t"}, "it has stopped")
            compute(process, before)
            after, captured = states(target.pid), process.capture(thread)
            process.close()
            return after, captured.capture

        assert TracerThread(work, lambda: False).run() == ({"R"}, Capture.STOPPED)


def test_killed_tracees_are_reaped_more_often_while_stops_are_pending(monkeypatch):
    """An execve(2) of the target waits for this, and PTRACE_SEIZE of another thread for the execve."""
    reaped = []
    monkeypatch.setattr(
        "sfsample.process.tracer_thread.reap_killed_tracees", lambda: reaped.append(time.monotonic())
    )

    def time_of_five(_stop):
        first = len(reaped)
        wait_until(lambda: len(reaped) > first + 5, "reaped six more times")
        return reaped[first + 5] - reaped[first]  # the first interval may be the old one

    def time_with_pending_stops(stop):
        PENDING_STOPS.add(time_of_five)
        try:
            return time_of_five(stop)
        finally:
            PENDING_STOPS.remove(time_of_five)

    works = time_of_five, time_with_pending_stops
    usual_s, pending_s = (TracerThread(work, lambda: False).run() for work in works)
    assert pending_s < usual_s / 2


def test_no_checkpoint_runs_between_a_copy_and_its_use(monkeypatch):
    """Another capture would overwrite the copy."""
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    checkpoints = []

    def at_checkpoint():
        checkpoints.append(1)

    with running(fixture("v3"), "leaf") as target, subprocess.Popen(["sleep", "600"]) as asleep:
        try:
            wait_until(lambda: states(asleep.pid) == {"S"}, "it sleeps")

            def work(_stop):
                processes = [LiveProcess(target.pid), LiveProcess(asleep.pid)]
                PENDING_STOPS.add(at_checkpoint)
                running_thread, sleeping = [process.thread(process.pid) for process in processes]
                captures = processes[0].capture(running_thread), processes[1].read(sleeping)
                before = len(checkpoints)
                find_function_starts(CODE)
                PENDING_STOPS.remove(at_checkpoint)
                for process in processes:
                    process.close()
                return captures, before

            captures, before = TracerThread(work, lambda: False).run()
        finally:
            asleep.kill()
    assert all(captures)
    assert (before, bool(checkpoints)) == (0, True)


def test_thread_that_stops_late_is_examined_before_its_release():
    """Otherwise an interrupted system call would not be counted."""
    with running(fixture("v3"), "leaf") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)

        def stop_late(_stop):
            missed = tracer.stop(request, 0)
            while missed is None:  # it stopped at once
                tracer.release()
                missed = tracer.stop(request, 0)
            wait_until(lambda: states(target.pid) == {"t"}, "it has stopped")
            tracer.release()
            seen = states(target.pid), tracer.has_stopped(request), tracer.stop(request)
            tracer.release()
            return missed.reason is Reason.PENDING, seen, tracer.release_pending()

        is_pending, seen, all_released = TracerThread(stop_late, lambda: False).run()
        assert is_pending
        assert seen == ({"t"}, True, None)
        assert all_released
        target.assert_unharmed()


@pytest.fixture
def two_threads(tmp_path):
    """Yield a process whose first thread calls execve(2) after a byte on its input, and the other's tid."""
    program = compile_c(tmp_path, "two", TWO_THREADS, "-pthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def killed_by_execve(process, tid):
    """Hold a thread while another calls execve(2); return the tracer."""
    tracer = Tracer(process.pid, check(ProcFs(process.pid)))
    assert tracer.stop(StopRequest(tid)) is None
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: tracer.reader.read(tid) is None, "the held thread is killed by execve")
    return tracer


@needs_gcc
def test_exec_of_another_thread_does_not_wait_for_sfsample(two_threads):
    """execve(2) kills the other threads; sfsample must reap one that it holds."""
    process, tid = two_threads
    tracer = killed_by_execve(process, tid)
    tracer.release()
    path = f"/proc/{process.pid}/exe"
    wait_until(lambda: tracer.release_pending() and "sleep" in os.readlink(path), "the exec is done")


@needs_gcc
def test_exec_and_seize_do_not_wait_for_each_other(two_threads):
    """PTRACE_SEIZE waits for the end of the execve, and the execve for the thread that sfsample holds."""
    process, tid = two_threads
    gave_up = threading.Event()
    watchdog = threading.Timer(HANG_S, lambda: (gave_up.set(), process.kill()))
    watchdog.start()

    def hold_both(_) -> str:
        tracer = killed_by_execve(process, tid)
        other = Tracer(process.pid, check(ProcFs(process.pid)))
        other.stop(StopRequest(process.pid))
        program = os.readlink(f"/proc/{process.pid}/exe")
        other.release()
        tracer.release()
        return program

    program = TracerThread(hold_both, lambda: False).run()
    watchdog.cancel()
    assert not gave_up.is_set()
    assert "sleep" in program


def test_reaping_consumes_no_stop_of_a_living_thread():
    with running(fixture("v3"), "leaf") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)
        while tracer.stop(request, 0) is None:
            tracer.release()  # it stopped at once
        wait_until(lambda: states(target.pid) == {"t"}, "has stopped, and its status was not read")
        reap_killed_tracees()
        assert tracer.stop(request) is None
        tracer.release()
        target.assert_unharmed()


@pytest.mark.parametrize("children", [12, extended(40)])
def test_parent_gets_the_exit_status_of_a_sampled_child(children):
    script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 7"
    codes: Counter[int] = Counter()
    samples = 0
    while codes.total() < fewer(children) or samples <= fewer(children):
        child = subprocess.Popen(["/bin/sh", "-c", script])
        try:
            samples += sfsample.record(
                child.pid, 5, sfsample.RecordOptions(rate=5000, mode="wall")
            ).stats.samples
        except sfsample.NoSuchProcess:
            pass
        finally:
            codes[child.wait()] += 1
    assert set(codes) == {7}


def test_opening_a_process_neither_stops_nor_keeps_it():
    with running(fixture("v3"), "epoll") as target:
        process = LiveProcess(target.pid)
        process.close()
        assert status(target.pid)["TracerPid"] == "0"


def test_copy_never_exceeds_its_buffer():
    source = bytearray(b"x" * 64)
    buffer = CopyBuffer(16)
    address = int.from_bytes(os.urandom(1), "little")  # an unreadable address: nothing is copied
    assert buffer.fill(os.getpid(), address, 64) == 0
    import ctypes

    at = ctypes.addressof((ctypes.c_char * 64).from_buffer(source))
    assert buffer.fill(os.getpid(), at, 64) == 16
    assert buffer.fill(os.getpid(), at, 64, at=10) == 6


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("stack_bytes", 256),
        ("rate", 0),
        ("duration", -1),
        ("mode", "Wall"),
        ("max_frames", 0),
        ("python", "only"),
    ],
)
def test_invalid_option_is_refused(option, value):
    if option == "duration":
        use = partial(sfsample.record, os.getppid(), value)
    else:
        use = partial(sfsample.RecordOptions, **{option: value})
    with pytest.raises(ValueError, match=option):
        use()
