"""What ends inside a pause: the thread that is held, or the whole process.

Law: whoever waits for it (an execve of another thread, the parent) is not kept waiting by us and is told the
truth.
"""

import os
import shutil
import subprocess
import threading
import time
from collections import Counter

import pytest

import sfsample
from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.snapshot import Capture
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.function_starts import find_function_starts
from sfsample.process.find import check
from sfsample.process.not_captured import NotCaptured
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.ptrace import interrupt
from sfsample.process.stop_request import PATIENCE_NS, StopRequest, Tracer, reap_killed_tracees
from sfsample.process.tracer_thread import TracerThread
from sfsample.process.vm import CopyBuffer
from sfsample.unwind.steppers.code_analysis.flow import Flow
from sfsample.unwind.unwinder import Unwinder
from tests.builders.elf_builder import Load, elf
from tests.live.recording import fewer
from tests.live.targets import HANG_S, fixture, running, states, status, wait_until

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


def compiled(source, program):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build the target with")
    subprocess.run(["gcc", "-x", "c", "-", "-o", program, "-pthread"], input=source, text=True, check=True)
    return program


@pytest.fixture
def deaf(monkeypatch):
    """Have so many requests to stop be forgotten, as the kernel may when an execve(2) ends other threads."""
    left = [0]

    def forgetful(tid):
        if not left[0]:
            return interrupt(tid)
        left[0] -= 1
        return True

    monkeypatch.setattr("sfsample.process.stop_request.interrupt", forgetful)
    return left


@pytest.mark.parametrize("patience_ns", [0, PATIENCE_NS])
def test_a_request_to_stop_that_is_forgotten_is_made_again(deaf, patience_ns):
    with running(fixture("v3"), "leaf") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)
        deaf[0] = 1

        def stop(_stop):
            missed = tracer.stop(request, patience_ns)
            if missed is not None and not patience_ns:
                wait_until(lambda: tracer.has_stopped(request), "it has stopped")
                missed = tracer.stop(request)
            tracer.release()
            return missed

        assert TracerThread(stop, lambda: False).run() is None


def test_a_program_that_is_replaced_before_it_stops_is_not_waited_for_twice(deaf, tmp_path):
    """Each tick used to leave one thread behind, which counted as lost in every tick until the end."""
    with subprocess.Popen([compiled(REPLACED, tmp_path / "replaced")]) as target:
        try:
            deaf[0] = 1 << 30
            stats = sfsample.record(target.pid, duration=1.0, options=sfsample.RecordOptions(mode="wall", perf_events=False)).stats
        finally:
            target.kill()
    assert stats.captures[Capture.FAILED] <= stats.ticks


CODE = ElfImage(elf([Load(0x1000, bytes(range(256)) * 64)]), "invented")


def walk(process, snapshot):
    Unwinder(process.modules).walk(snapshot)


@pytest.mark.parametrize(
    "compute",
    [lambda *_: find_function_starts(CODE), lambda *_: [*Flow(lambda _: b"\x90").visits(0)], walk],
    ids=["looking through code", "following it", "walking"],
)
def test_who_stops_while_we_compute_is_captured_and_let_go(monkeypatch, compute):
    """The code of a large file takes a fifth of a second."""
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    with running(fixture("v3"), "leaf") as target:
        process = LiveProcess(target.pid)

        def work(_stop):
            thread = process.thread(target.pid)
            before = process.capture(thread)
            while not isinstance(process.capture(thread, 0), NotCaptured):
                pass  # it was very quick
            wait_until(lambda: states(target.pid) == {"t"}, "it has stopped")
            compute(process, before)
            after, caught = states(target.pid), process.capture(thread)
            process.close()
            return after, caught.capture

        assert TracerThread(work, lambda: False).run() == ({"R"}, Capture.STOPPED)


def test_the_dead_are_buried_soon_while_somebody_may_have_died(monkeypatch):
    """An execve(2) of the target waits for that, and our PTRACE_SEIZE of another thread for the execve."""
    buried = []
    monkeypatch.setattr(
        "sfsample.process.tracer_thread.reap_killed_tracees", lambda: buried.append(time.monotonic())
    )

    def five_times(_stop):
        first = len(buried)
        wait_until(lambda: len(buried) > first + 5, "they were buried some more times")
        return buried[first + 5] - buried[first]  # the first time may still be as before

    def while_closed(stop):
        PENDING_STOPS.add(five_times)
        try:
            return five_times(stop)
        finally:
            PENDING_STOPS.remove(five_times)

    usual, soon = (TracerThread(work, lambda: False).run() for work in (five_times, while_closed))
    assert soon < usual / 2


def test_nobody_breathes_between_a_copy_and_its_use(monkeypatch):
    """Another copy would be in its place."""
    monkeypatch.setattr("sfsample.core.checkpoint._CHECKPOINT_NS", 0)
    breaths = []

    def breathed():
        breaths.append(1)

    with running(fixture("v3"), "leaf") as target, subprocess.Popen(["sleep", "600"]) as asleep:
        try:
            wait_until(lambda: states(asleep.pid) == {"S"}, "it sleeps")

            def work(_stop):
                processes = [LiveProcess(target.pid), LiveProcess(asleep.pid)]
                PENDING_STOPS.add(breathed)
                running_thread, sleeping = [process.thread(process.pid) for process in processes]
                taken = processes[0].capture(running_thread), processes[1].read(sleeping)
                before = len(breaths)
                find_function_starts(CODE)
                PENDING_STOPS.remove(breathed)
                for process in processes:
                    process.close()
                return taken, before

            taken, before = TracerThread(work, lambda: False).run()
        finally:
            asleep.kill()
    assert all(taken)
    assert (before, bool(breaths)) == (0, True)


def test_a_thread_that_stops_too_late_is_not_let_go_unseen():
    """What its stop has done to its system call would not be counted."""
    with running(fixture("v3"), "leaf") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)

        def stop_late(_stop):
            missed = tracer.stop(request, 0)
            while missed is None:  # it was very quick
                tracer.release()
                missed = tracer.stop(request, 0)
            wait_until(lambda: states(target.pid) == {"t"}, "it has stopped")
            tracer.release()
            seen = states(target.pid), tracer.has_stopped(request), tracer.stop(request)
            tracer.release()
            return missed.pending, seen, tracer.release_pending()

        waiting, seen, settled = TracerThread(stop_late, lambda: False).run()
        assert waiting
        assert seen == ({"t"}, True, None)
        assert settled
        target.assert_unharmed()


@pytest.fixture
def two_threads(tmp_path):
    """A process whose first thread calls execve(2) when it is told to, and the id of the other one."""
    program = compiled(TWO_THREADS, tmp_path / "two")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, int(process.stdout.readline())
        process.kill()


def killed_by_execve(process, tid):
    """Hold a thread, and let another one call execve(2); return what holds it."""
    tracer = Tracer(process.pid, check(ProcFs(process.pid)))
    assert tracer.stop(StopRequest(tid)) is None
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: tracer.registers(tid) is None, "the held thread is killed by execve")
    return tracer


def test_exec_in_another_thread_does_not_wait_for_us(two_threads):
    """execve(2) kills the other threads; one that dies while we hold it is ours to wait for."""
    process, tid = two_threads
    tracer = killed_by_execve(process, tid)
    tracer.release()
    path = f"/proc/{process.pid}/exe"
    wait_until(lambda: tracer.release_pending() and "sleep" in os.readlink(path), "the exec is done")


def test_exec_does_not_wait_for_a_seize_that_waits_for_it(two_threads):
    """PTRACE_SEIZE waits until the execve is done, and that for the thread that died while we held it."""
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


def test_burying_the_dead_takes_no_stop_of_the_living():
    with running(fixture("v3"), "leaf") as target:
        tracer = Tracer(target.pid, check(ProcFs(target.pid)))
        request = StopRequest(target.pid)
        while tracer.stop(request, 0) is None:
            tracer.release()  # it was that quick
        wait_until(lambda: states(target.pid) == {"t"}, "has stopped, and nobody has looked")
        reap_killed_tracees()
        assert tracer.stop(request) is None
        tracer.release()
        target.assert_unharmed()


def test_the_end_of_our_child_is_told_to_whoever_started_it():
    script = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; exit 7"
    codes: Counter[int] = Counter()
    samples = 0
    while codes.total() < fewer(40) or samples <= fewer(40):
        child = subprocess.Popen(["/bin/sh", "-c", script])
        try:
            samples += sfsample.record(child.pid, 5, sfsample.RecordOptions(rate=5000, mode="wall")).stats.samples
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


def test_a_copy_never_exceeds_its_buffer():
    source = bytearray(b"x" * 64)
    buffer = CopyBuffer(16)
    address = int.from_bytes(os.urandom(1), "little")  # any unreadable address: nothing is copied
    assert buffer.fill(os.getpid(), address, 64) == 0
    import ctypes

    at = ctypes.addressof((ctypes.c_char * 64).from_buffer(source))
    assert buffer.fill(os.getpid(), at, 64) == 16
    assert buffer.fill(os.getpid(), at, 64, at=10) == 6


@pytest.mark.parametrize(
    ("option", "value"),
    [("stack_bytes", 256), ("rate", 0), ("duration", -1), ("mode", "Wall"), ("max_frames", 0)],
)
def test_arguments_that_make_no_sense(option, value):
    with pytest.raises(ValueError, match=option):
        if option == "duration":
            sfsample.record(os.getppid(), value)
        sfsample.RecordOptions(**{option: value})
