"""Records of a process that is not open yet wait until sfsample has tried to open it once more."""

import time
from types import SimpleNamespace

import pytest

from sfsample.core.checkpoint import OutOfTime
from sfsample.core.memory import BytesMemory
from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture
from sfsample.process.perf_records import PerfSample
from sfsample.recording import perf_sampler
from sfsample.recording.options import RecordOptions
from sfsample.recording.perf_process import PerfProcess
from sfsample.recording.perf_sampler import PerfSampler
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile

PARENT, CHILD = 7, 8
BARE = {"_deferred": [], "maps_stale": False, "_maps_read_ns": 0, "_forget_ended": lambda: None}
SAMPLE = PerfSample(0, CHILD, CHILD, 10**7, {}, BytesMemory(0, b""), bounded=False)


class FakePerfProcess:
    def __init__(self, *, needs_maps: bool) -> None:
        self.needs_maps = needs_maps  # so the rings are read twice
        self.taken = []

    def begin(self):
        return True

    def read_cpu_time(self):
        pass

    def take(self, records, *_):
        self.taken += records


def test_process_that_is_opened_between_the_two_readings_of_one_read_gets_its_samples(monkeypatch):
    sampler = PerfSampler(Recording(Processes([]), RecordOptions(), Profile(99)))
    child = FakePerfProcess(needs_maps=False)
    to_open, read = [{}, {CHILD: child}], [[SAMPLE], []]
    sampler._timers.events = SimpleNamespace(read=lambda: read.pop(0))
    sampler._alive = {PARENT: FakePerfProcess(needs_maps=True)}
    monkeypatch.setattr(sampler, "_open_descendants", lambda *_: sampler._alive.update(to_open.pop(0)))

    assert sampler._collect() == {PARENT: True, CHILD: True}
    assert child.taken == [SAMPLE]
    assert sampler.profile.stats.captures[Capture.FAILED] == 0


@pytest.mark.parametrize(
    ("options", "wants_kernel"),
    [({}, True), ({"kernel": False}, False), ({"python": PythonView.ONLY}, False),
     ({"python": PythonView.ONLY, "kernel": True}, True)],
)  # fmt: skip
def test_python_functions_alone_have_no_kernel_frames_unless_asked_for(monkeypatch, options, wants_kernel):
    monkeypatch.setattr(perf_sampler, "shows_addresses", lambda: True)
    sampler = PerfSampler(Recording(Processes([]), RecordOptions(**options), Profile(99)))
    assert sampler._timers._kernel is wants_kernel


def test_samples_of_a_process_that_could_not_be_opened_are_counted_once():
    sampler = PerfSampler(Recording(Processes([]), RecordOptions(), Profile(99)))
    for _ in range(3):
        sampler._count([SAMPLE])
    sampler._count([])
    sampler._count([])
    assert sampler.profile.stats.captures[Capture.FAILED] == 3
    assert list(sampler.profile.stats.problems.values()) == [3]


def test_work_ends_soon_after_the_recording():
    sampler = PerfSampler(Recording(Processes([]), RecordOptions(), Profile(99), 1000.0))
    sampler._start_ns = time.perf_counter_ns()
    sampler._note_end()
    assert not sampler._end_s
    sampler._start_ns -= 1001 * 10**9
    with pytest.raises(OutOfTime):
        sampler._note_end()
    assert sampler._end_s > 1000


def test_stacks_that_are_not_unwound_in_time_are_counted(monkeypatch):
    def end():
        raise OutOfTime

    monkeypatch.setattr(PerfProcess, "__init__", lambda process: process.__dict__.update(BARE))
    profile = BARE["_profile"] = Profile(99)
    PerfProcess().take([SAMPLE, SAMPLE], 0, before_each=end)
    assert profile.stats.captures[Capture.FAILED] == 2
    assert list(profile.stats.problems.values()) == [2]
