"""The kernel's timers follow descendants: those that are there, and those that are born later."""

import gc

import pytest

import sfsample
from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture
from sfsample.process.descendants import Descendants
from sfsample.recording.choose_sampler import FreeCpus
from sfsample.recording.profile import Profile
from tests.live.parent_program import parent, send_order
from tests.live.perf_recording import accounted_ns, needs_timers, record_by_perf
from tests.live.targets import assert_untraced, python
from tests.live.test_resources import open_files
from tests.live.test_subprocesses import Director

pytestmark = [pytest.mark.live, needs_timers]

_NOT_OPENED = "not captured: the subprocess ended before it could be opened, or could not be opened"


def test_present_and_later_descendants_have_timers():
    with parent() as target:
        before = send_order(target, "child")
        profile = Profile(500)
        director = Director(target, profile, "child", "grandchild", pids=[before])
        director.pids.remove(target.pid)  # it sleeps, so it has no sample
        options = sfsample.RecordOptions(rate=500, perf_events=True, subprocesses=True)
        sfsample.record(target.pid, None, options, profile=profile, should_stop=director)
        for pid in director.pids:
            assert_untraced(pid)
        prefixes = tuple(f"/proc/{pid}" for pid in (target.pid, *director.pids))
        assert not [name for name in open_files() if name.startswith(prefixes)]
    stats = profile.stats
    assert stats.captures[Capture.EVENT] == stats.samples
    assert stats.subprocesses.watched >= 4  # with the shell
    text = sfsample.folded(profile)
    assert ";leaf_spin " in text
    assert ";spin_innermost " in text
    assert 0 < accounted_ns(stats) <= 1.1 * stats.cpu_charged_ns


def test_choice_of_timers_keeps_the_descendants(monkeypatch):
    monkeypatch.setattr(FreeCpus, "all_busy", lambda _: 1.0)
    with parent() as target:
        child = send_order(target, "child")
        profile = Profile(200)

        def by_both() -> bool:
            captures = profile.stats.captures
            return captures[Capture.STOPPED] > 0 and captures[Capture.EVENT] > 0

        director = Director(target, profile, "child", pids=[child])
        director.pids.remove(target.pid)
        options = sfsample.RecordOptions(rate=200, subprocesses=True, python=PythonView.OFF)
        sfsample.record(
            target.pid, None, options, profile=profile, should_stop=lambda: by_both() and director()
        )
        for pid in director.pids:
            assert_untraced(pid)
    stats = profile.stats
    assert stats.engine_why == "no CPU was free"
    assert stats.subprocesses.watched == 2, "each descendant is opened once"
    assert stats.threads == 2


# Children that use 30 ms of CPU time each, one after another.
BRIEF_CHILDREN = """
import os, sys, time
print("ready", flush=True)
while True:
    pid = os.fork()
    if not pid:
        while time.process_time() < 0.03: pass
        os._exit(0)
    os.waitpid(pid, 0)
"""


def test_samples_of_a_descendant_that_was_never_open_are_counted_as_lost(monkeypatch):
    monkeypatch.setattr(Descendants, "open_new", lambda *_, **__: iter(()))
    with python(BRIEF_CHILDREN) as target:
        assert target.stdout.readline() == b"ready\n"
        profile = Profile(500)
        stats = profile.stats
        options = sfsample.RecordOptions(rate=500, perf_events=True, subprocesses=True)
        sfsample.record(
            target.pid, None, options, profile=profile, should_stop=lambda: stats.problems[_NOT_OPENED] > 20
        )
    assert stats.captures[Capture.FAILED] >= stats.problems[_NOT_OPENED] > 20
    assert {key.process_key for key in profile.counts} <= {target.pid}


def test_ended_descendants_leave_no_open_files():
    with python(BRIEF_CHILDREN) as target:
        assert target.stdout.readline() == b"ready\n"
        gc.collect()
        files = open_files()
        profile = record_by_perf(
            target.pid, subprocesses=True, until=lambda profile: profile.stats.subprocesses.watched > 5
        )
        assert len({key.process_key for key in profile.counts}) > 2
        del profile
        gc.collect()
        assert open_files() == files


# Starts programs, one after another, that use 200 ms of CPU time each.
BRIEF_PROGRAMS = """
import subprocess, sys
print("ready", flush=True)
while True:
    subprocess.call([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.2: pass"])
"""


def test_programs_that_run_briefly_are_unwound():
    """Each program calls execve(2) after it was found; sfsample reads the new maps before its end."""
    with python(BRIEF_PROGRAMS) as target:
        assert target.stdout.readline() == b"ready\n"
        profile = record_by_perf(target.pid, samples=300, rate=200, subprocesses=True)
    stats = profile.stats
    assert stats.captures[Capture.FAILED] < 0.2 * stats.samples, stats.problems
    assert len({key.process_key for key in profile.counts}) > 3
