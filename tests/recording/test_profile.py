"""Profiles count stacks and time; statistics have the documented keys."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.filesystem import ProcessRoot
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.location import Location, locate, pid_of
from sfsample.modules.module import Module
from sfsample.process.labels import Identity
from sfsample.recording.profile import Profile, Timeline, Waiters
from sfsample.recording.sample import StackKey, ThreadKey
from sfsample.recording.stats import Pauses, Stats
from tests.builders.elf_builder import Load, elf
from tests.builders.samples import sample

BIAS = 0x5555_0000_0000
MODULE = Module(ElfImage(elf([Load(0x1000, bytes(64))]), "x"), BIAS, "/bin/x")


def frame(pc: int, found: Found = Found.CONTEXT, *, exact: bool = True) -> Frame:
    return Frame(pc, 0, None, found, exact)


STACK = Stack(
    (frame(1), frame(2, Found.SFRAME, exact=False), frame(3, Found.SFRAME, exact=False)), StopReason.OUTERMOST
)


def add(profile: Profile, pid: int, tid: int, places, stack: Stack = STACK, **times: int) -> None:
    profile.add(sample(ThreadKey(pid, tid), places, stack, **times))


def test_locations_are_vaddrs_in_modules():
    exact, returned = frame(BIAS + 0x1010), frame(BIAS + 0x1010, exact=False)

    assert locate(exact, MODULE, 7) == Location(MODULE, 0x1010, 0x1010, found="context")
    assert locate(returned, MODULE, 7) == Location(MODULE, 0x1010, 0x100F, found="context")
    assert locate(returned, None, 7) == Location(None, BIAS + 0x1010, BIAS + 0x100F, 7, "context")


def test_equal_samples_are_counted_as_one_stack():
    profile = Profile(99.0)
    here, there = Location(None, 1, 1), Location(None, 2, 2)
    add(profile, 7, 8, [here, there])
    add(profile, 7, 8, (here, there))
    add(profile, 7, 9, [here, there])
    add(profile, 7, 8, [there, here])
    add(profile, 7, 8, [here, there], STACK._replace(stop_reason=StopReason.NO_ROW))

    assert profile.counts[StackKey(7, 8, (here, there), StopReason.OUTERMOST)] == 2
    assert len(profile.counts) == 4
    assert profile.stats.samples == 5
    assert profile.stats.stacks == {StopReason.OUTERMOST: 4, StopReason.NO_ROW: 1}
    assert profile.stats.frames == {Found.CONTEXT: 5, Found.SFRAME: 10}


def test_profile_adds_up_wall_and_cpu_time():
    profile = Profile(99.0, timeline=True)
    here, there = (Location(None, 1, 1),), (Location(None, 2, 2),)
    add(profile, 7, 8, here, at_ns=10, wall_ns=10, cpu_ns=9)
    add(profile, 7, 8, there, at_ns=20, wall_ns=10, cpu_ns=8)
    add(profile, 7, 8, here, at_ns=50, wall_ns=30, cpu_ns=0, times=3)
    first, second = profile.counts

    assert (profile.counts[first], profile.totals[first].wall_ns, profile.totals[first].cpu_ns) == (4, 40, 9)
    assert (profile.counts[second], profile.totals[second].wall_ns, profile.totals[second].cpu_ns) == (
        1,
        10,
        8,
    )
    assert profile.stats.samples == 5
    line = profile.timeline
    assert [line.keys[index] for index in line.stack] == [first, second, first]
    assert list(line.at_ns) == [10, 20, 50]
    assert list(line.wall_ns) == [10, 10, 30]
    assert list(line.cpu_ns) == [9, 8, 0]
    assert list(line.times) == [1, 1, 3]


def test_timeline_drops_records_beyond_its_limit(monkeypatch):
    monkeypatch.setattr("sfsample.recording.profile.TIMELINE_LIMIT", 2)
    line = Timeline()
    for at in range(5):
        line.add(StackKey(7, at, (), StopReason.OUTERMOST), at, 1, 1, 1)

    assert (len(line), len(line.keys), line.dropped) == (2, 2, 3)


# -- pauses


def pauses(*values: int) -> Pauses:
    made = Pauses()
    for value in values:
        made.add(value)
    return made


def test_pauses_without_a_stop_are_zero():
    assert pauses().as_json() == {"count": 0, "p50": 0, "p90": 0, "p99": 0, "max": 0, "total": 0}


def test_percentiles_are_ranks():
    made = pauses(*range(1, 101))

    assert [made.percentile(p) for p in (1, 50, 90, 99, 100)] == [1, 50, 90, 99, 100]
    assert made.as_json() == {"count": 100, "p50": 50, "p90": 90, "p99": 99, "max": 100, "total": 5050}


def test_single_pause_is_every_percentile():
    assert pauses(61_000).as_json() == {
        "count": 1, "p50": 61_000, "p90": 61_000, "p99": 61_000, "max": 61_000, "total": 61_000}  # fmt: skip


def test_percentiles_have_three_digits_and_the_maximum_all():
    made = pauses(123_456)

    assert (made.percentile(50), made.max, made.total) == (123_000, 123_456, 123_456)


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=200), st.sampled_from([50, 90, 99]))
def test_percentile_is_exact_to_three_digits(values, percent):
    ranked = sorted(values)
    exact = ranked[max(0, -(-len(values) * percent // 100) - 1)]
    found = pauses(*values).percentile(percent)

    assert found <= exact
    assert exact - found <= exact / 100


# -- statistics


STATS_KEYS = [
    "schema",
    "duration_s",
    "rate_hz",
    "ticks",
    "late_ticks",
    "samples",
    "captures",
    "stop_ns",
    "stacks",
    "frames",
    "eintr_prone_stops",
    "threads",
    "modules",
    "modules_with_sframe",
    "sampler_cpu_s",
    "sampler_max_rss_bytes",
    "problems",
    "achieved_hz",
    "spared_ticks",
    "off_processor",
    "without_gil",
    "cpu_charged_ns",
    "cpu_sampled_ns",
    "coverage",
    "subprocesses",
    "perf_events",
    "engine",
    "engine_why",
    "held_ns",
    "mode",
    "holders_changed",
    "holders_refused",
    "brief_waits",
]


def test_empty_statistics_have_all_keys():
    made = Stats(99.0).as_json()

    assert list(made) == STATS_KEYS
    assert made["schema"] == "sfsample.stats/1"
    assert made["captures"] == {"stopped": 0, "read": 0, "reused": 0, "failed": 0}
    assert list(made["held_ns"]) == list(made["stop_ns"]) == ["count", "p50", "p90", "p99", "max", "total"]
    assert made["stacks"] == {"outermost": 0, "max_frames": 0}
    assert made["frames"] == {"context": 0, "sframe": 0, "eh_frame": 0}
    assert made["problems"] == []


def test_statistics_as_json():
    stats = Stats(49.5)
    stats.mode = "wall"
    stats.duration_s, stats.sampler_cpu_s, stats.sampler_max_rss_bytes = 10.00000049, 0.3100004, 41_000_000
    stats.ticks, stats.late_ticks, stats.eintr_prone_stops = 495, 3, 2
    stats.captures.update({Capture.STOPPED: 4, Capture.FAILED: 1})
    stats.pauses.add(61_000)
    stats.held.add(60_000)
    stats.count_stack(STACK)
    stats.count_stack(STACK._replace(stop_reason=StopReason.STACK_COPY_ENDED))
    stats.threads, stats.cpu_charged_ns, stats.cpu_sampled_ns = 3, 2_000_000, 1_500_000
    stats.subprocesses.watched, stats.subprocesses.refused = 4, 1
    stats.timers_since_s, stats.timers_of, stats.engine_why = 0.5, "threads", "no CPU was free"
    stats.module_paths += [("/bin/x", True), ("/lib/libc.so.6", False)]
    stats.problems.update({"once": 1, "often": 3})
    made = stats.as_json()

    assert made == {
        "schema": "sfsample.stats/1", "duration_s": 10.0, "rate_hz": 49.5, "ticks": 495, "late_ticks": 3,
        "samples": 2, "captures": {"stopped": 4, "read": 0, "reused": 0, "failed": 1},
        "stop_ns": {"count": 1, "p50": 61_000, "p90": 61_000, "p99": 61_000, "max": 61_000, "total": 61_000},
        "stacks": {"outermost": 1, "max_frames": 0, "stack_copy_ended": 1},
        "frames": {"context": 2, "sframe": 4, "eh_frame": 0}, "eintr_prone_stops": 2, "threads": 3,
        "modules": 2, "modules_with_sframe": 1, "sampler_cpu_s": 0.31, "sampler_max_rss_bytes": 41_000_000,
        "problems": ["once", "often (3 times)"],
        "achieved_hz": 49.2,
        "spared_ticks": 0,
        "off_processor": 0,
        "without_gil": 0,
        "cpu_charged_ns": 2_000_000,
        "cpu_sampled_ns": 1_500_000,
        "coverage": 0.75,
        "subprocesses": {"watched": 4, "short_lived": 0, "refused": 1},
        "perf_events": {
            "since_s": 0.5, "of": "threads", "because": "no CPU was free",
        },
        "engine": "timers",
        "engine_why": "no CPU was free",
        "held_ns": {"count": 1, "p50": 60_000, "p90": 60_000, "p99": 60_000, "max": 60_000, "total": 60_000},
        "mode": "wall",
        "holders_changed": 0,
        "holders_refused": 0,
        "brief_waits": 0,
    }  # fmt: skip
    assert json.loads(json.dumps(made)) == made


@pytest.mark.parametrize("reason", StopReason)
def test_every_stop_reason_has_a_key(reason):
    stats = Stats(99.0)
    stats.count_stack(Stack((frame(1),), reason))

    assert stats.as_json()["stacks"][str(reason)] == 1


def test_problems_beyond_a_thousand_are_counted_together():
    stats = Stats(99.0)
    for number in range(1500):
        stats.note(f"no_row at {number:#x}")
    stats.note("no_row at 0x1", 3)

    assert len(stats.problems) == 1001
    assert stats.problems["other problems"] == 500
    assert stats.problems["no_row at 0x1"] == 4


def test_threads_beyond_the_limit_are_counted_together(monkeypatch):
    monkeypatch.setattr("sfsample.recording.profile.THREAD_LIMIT", 2)
    profile = Profile(99.0)

    assert [profile.name_thread(ThreadKey(1, t), f"t{t}").tid for t in (1, 2, 3, 1, 4)] == [1, 2, 0, 1, 0]
    names = {ThreadKey(1, 1): "t1", ThreadKey(1, 2): "t2", ThreadKey(1, 0): "other threads"}
    assert profile.threads == names
    assert profile.stats.problems == {"more than 2 threads: later threads are counted together": 2}


HOME = ProcessRoot(None, 5, 0, "")


def test_reused_pid_is_another_process():
    profile = Profile(99.0)
    first, second, third = (
        profile.register_process(5, start_time, HOME, "new") for start_time in (10, 20, 30)
    )
    assert (
        first,
        profile.register_process(5, 10, HOME, "new"),
        profile.register_process(6, 10, HOME, "new"),
    ) == (5, 5, 6)
    assert len({first, second, third}) == 3
    assert {pid_of(number) for number in (first, second, third)} == {5}

    profile.name_process(first, "first")
    profile.name_process(second, "second")
    profile.forget_process(second)

    assert profile.processes == {first: "first", third: "new", 6: "new"}
    assert profile.roots.keys() == {first, third, 6}
    assert profile.register_process(5, 40, HOME, "new") == second


def test_process_with_a_sample_is_not_forgotten():
    """A second sampler without samples of a process must not drop what the first sampled."""
    profile = Profile(99.0)
    for pid in (1, 2):
        profile.register_process(pid, 10, HOME, f"p{pid}")
    profile.name_thread(ThreadKey(1, 1), "t")
    add(profile, 1, 1, [])
    for pid in (1, 2):
        profile.forget_process(pid)
    assert profile.processes == {1: "p1"}
    assert profile.roots.keys() == {1}


def test_processes_beyond_the_limit_are_counted_together(monkeypatch):
    monkeypatch.setattr("sfsample.recording.profile.PROCESS_LIMIT", 2)
    profile = Profile(99.0)
    numbers = [profile.register_process(pid, 10, HOME, "new") for pid in (1, 2, 3, 4, 1)]
    assert numbers == [1, 2, 0, 0, 1]
    for number in numbers:
        profile.name_process(number, f"p{number}")
    profile.forget_process(0)

    assert profile.processes == {1: "p1", 2: "p2", 0: "other processes"}
    assert profile.roots.keys() == {1, 2}
    assert profile.stats.problems == {"more than 2 processes: later processes are counted together": 2}


def test_stacks_beyond_the_limit_are_kept_without_frames(monkeypatch):
    monkeypatch.setattr("sfsample.recording.profile.STACK_LIMIT", 2)
    profile, thread = Profile(99.0), ThreadKey(1, 1)
    for pc in (0x10, 0x20, 0x30, 0x10, 0x40):
        stack = Stack((Frame(pc, 0, None, Found.CONTEXT, exact=True),), StopReason.OUTERMOST)
        places = [locate(frame, None, 1) for frame in stack.frames]
        profile.add(sample(thread, places, stack, wall_ns=1, cpu_ns=1))

    counted = {tuple(place.address for place in key.locations): n for key, n in profile.counts.items()}
    assert counted == {(0x10,): 2, (0x20,): 1, (): 2}
    assert profile.stats.problems == {"more than 2 stacks that differ: later stacks have no frames": 2}


def test_identity_after_an_execve_is_that_of_the_new_program():
    profile, labels = Profile(19.0), {"host.name": "h", "team": "a"}
    profile.identify(1, Identity({"comm": "sh", **labels}, exe="/bin/sh", build_id="aa", unit="u.service"))
    profile.identify(1, Identity({"comm": "app", **labels}, exe="/bin/app", build_id="bb", unit="u.service"))
    assert profile.identities[1] == Identity({"comm": "app", **labels}, "/bin/app", "bb", unit="u.service")


def test_what_a_program_has_more_after_its_start_is_known():
    profile = Profile(19.0)
    profile.identify(1, Identity({"comm": "python3"}, exe="/bin/python3", build_id="aa"))
    profile.identify(1, Identity({"comm": "gunicorn", "service.name": "web"}, exe="/bin/python3"))
    assert profile.identities[1] == Identity(
        {"comm": "gunicorn", "service.name": "web"}, exe="/bin/python3", build_id="aa"
    )


def test_cpu_time_is_kept_by_second_for_two_minutes():
    profile = Profile(19)
    places = [locate(each, MODULE, 7) for each in STACK.frames]
    for at_s, pid, cpu_ms in (
        (0.1, 7, 3),
        (0.9, 7, 4),
        (2.5, 7, 5),
        (2.5, 8, 90),
        (3.0, 8, 0),
        (119.9, 8, 1),
        (120, 8, 9),
    ):
        add(profile, pid, pid, places, at_ns=round(at_s * 1e9), cpu_ns=cpu_ms * 10**6)
    assert profile.cpu_ms_by_second({7}) == [7, 0, 5]
    assert profile.cpu_ms_by_second({9}) == []
    profile.stats.duration_s = 4.4
    assert profile.cpu_ms_by_second({7}) == [7, 0, 5, 0]
    everything = profile.cpu_ms_by_second()
    assert (len(everything), everything[:3], everything[-1]) == (120, [7, 0, 95], 1)


# -- CPU time of stacks


def cpu_times(profile: Profile, *, living: set[ThreadKey]) -> dict[tuple[int, tuple], int]:
    """Return the CPU time in ms by thread and places, for 100 ticks in a second."""
    profile.stats.ticks, profile.stats.duration_s = 100, 1.0
    profile.spread_cpu_time(living)
    assert sum(total.cpu_ns for total in profile.totals.values()) == profile.stats.cpu_sampled_ns
    return {(key.tid, key.locations): total.cpu_ns // 1_000_000 for key, total in profile.totals.items()}


def test_cpu_time_of_a_thread_is_spread_evenly_over_its_samples():
    """The CPU time between two samples is not that of the last stack alone."""
    profile = Profile(100)
    for places, cpu_ns in (((), 1_000_000), ((frame(1),), 7_000_000), ((), 1_000_000)):
        add(profile, 7, 8, places, cpu_ns=cpu_ns)
    profile.unseen_ns[7] = 50_000_000
    assert cpu_times(profile, living={ThreadKey(7, 8)}) == {(8, ()): 6, (8, (frame(1),)): 3}


@pytest.mark.parametrize(("unseen_ns", "brief_ms"), [(12_000_000, 8), (10**9, 10)])
def test_samples_of_ended_threads_stand_for_unseen_cpu_time(unseen_ns, brief_ms):
    """Each stands for at most the time between two ticks."""
    profile = Profile(100)
    for tid in (8, 9):
        add(profile, 7, tid, (), cpu_ns=2_000_000)
    add(profile, 7, 7, (), cpu_ns=3_000_000)
    add(profile, 6, 6, (), cpu_ns=4_000_000)
    profile.unseen_ns[7] = unseen_ns
    found = cpu_times(profile, living={ThreadKey(7, 7)})
    assert found == {(8, ()): brief_ms, (9, ()): brief_ms, (7, ()): 3, (6, ()): 4}


def test_waiters_are_counted_at_the_end_of_a_tick():
    waiters, (first, second) = Waiters(), (StackKey(1, tid, (), StopReason.OUTERMOST) for tid in (1, 2))
    waiters.update(a=2, b=1)
    waiters.joined.update(a=first, b=second)
    waiters.end_tick()
    waiters["a"] += 1  # in one tick, a thread gets the place of another
    waiters.joined["a"] = second
    waiters["a"] -= 1
    waiters.end_tick()
    assert waiters.most == {first: 2, second: 2}
    waiters["a"] += 1
    waiters.end_tick()
    assert waiters.most == {first: 2, second: 2}, "no new waiter was seen"
