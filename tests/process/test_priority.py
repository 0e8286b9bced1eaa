"""A dump and the imports run before other programs for a short time, if the kernel and the user permit it."""

import os
import subprocess
import sys

import pytest

from tests.live.test_priority import may_have_real_time_priority

_PROGRAM = """
import os, signal, sys, threading
from sfsample.process.priority import hurry
policies = []
note = lambda: policies.append(os.sched_getscheduler(0))
with hurry():
    note()
    thread = threading.Thread(target=lambda: (note(), ended.wait(), note()))
    ended = threading.Event()
    thread.start()
    while sys.argv[1:] and os.sched_getscheduler(0) != os.SCHED_OTHER: pass  # until its CPU time is over
    ended.set()
    thread.join()
    note()
print(*policies, os.sched_getscheduler(0), signal.getitimer(signal.ITIMER_PROF)[0])
"""


def policies(*words: str, before: tuple[str, ...] = ()) -> list[int]:
    command = [*before, sys.executable, "-c", _PROGRAM, *words]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    *seen, end, timer_s = shown.split()
    assert (int(end), float(timer_s)) == (os.SCHED_OTHER, 0)  # a signal at the exit would kill the program
    return [*map(int, seen)]


def test_all_threads_hurry_until_the_cpu_time_is_over() -> None:
    hurried = os.SCHED_RR if may_have_real_time_priority() else os.SCHED_OTHER
    assert policies("compute") == [hurried, hurried, os.SCHED_OTHER, os.SCHED_OTHER]
    assert policies() == [hurried] * 4


def test_nice_program_stays_nice() -> None:
    assert policies(before=("nice", "-n", "1")) == [os.SCHED_OTHER] * 4


_TURNS = """
import os, signal
from sfsample.process.priority import TURN_S, hurry
policies = [os.sched_getscheduler(0)]
with hurry(TURN_S):
    while len(policies) < 6:  # until the third turn
        if os.sched_getscheduler(0) != policies[-1]:
            policies.append(os.sched_getscheduler(0))
os.kill(os.getpid(), signal.SIGPROF)  # a late signal changes nothing
print(*policies, os.sched_getscheduler(0))
"""


@pytest.mark.skipif(not may_have_real_time_priority(), reason="the kernel refuses real-time priority")
def test_imports_hurry_in_turns() -> None:
    shown = subprocess.run([sys.executable, "-c", _TURNS], capture_output=True, text=True, check=True).stdout
    assert [*map(int, shown.split())] == [os.SCHED_OTHER, os.SCHED_RR] * 3 + [os.SCHED_OTHER]
