"""Tests of the folded format: one line for each stack, root first, sorted, with a mark for truncation."""

import os

from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location
from sfsample.recording.profile import Profile
from sfsample.recording.sample import ThreadKey
from sfsample.report.formats import FORMATS
from sfsample.report.naming import name_profile
from sfsample.symbolize.missing import MissingName
from sfsample.symbolize.named_frame import NamedFrame
from tests.builders.samples import sample

A, B, C = (Location(None, n, n) for n in (0xA, 0xB, 0xC))


def profile_of(*samples: tuple[int, int, list[Location], StopReason]) -> Profile:
    """Return a profile of (pid, tid, locations innermost first, stop reason)."""
    profile = Profile(99.0)
    profile.processes = {1: "redis-server", 2: "nginx"}
    for pid, tid, locations, reason in samples:
        names = {(1, 1): "main", (1, 5): "bio", (2, 2): "worker"}
        profile.add(sample(ThreadKey(pid, tid), locations, Stack((), reason), name=names[pid, tid]))
    return profile


class Namer:
    """Names a location by its address, or as `name` says."""

    problems = ("libc.so.6: no lines",)

    def __init__(self, name=lambda location: f"f{location.address:x}") -> None:
        self._name = name

    def frames(self, location: Location) -> tuple[NamedFrame, ...]:
        return (NamedFrame(self._name(location)),)

    def missing_names(self) -> list[MissingName]:
        return [MissingName("/bin/x", 3, "stripped")]


def folded(profile: Profile, namer=Namer(), **options) -> list[str]:  # noqa: B008 - it has no state
    return FORMATS["folded"].write(name_profile(profile, namer), **options).decode().splitlines()


COMPLETE = StopReason.OUTERMOST


def test_equal_stacks_are_one_line_with_their_count_root_first():
    profile = profile_of((1, 1, [A, B, C], COMPLETE), (1, 1, [A, B, C], COMPLETE), (1, 1, [B, C], COMPLETE))

    assert folded(profile) == ["redis-server;fc;fb 1", "redis-server;fc;fb;fa 2"]


def test_lines_are_sorted():
    profile = profile_of(
        (2, 2, [A], COMPLETE), (1, 1, [C], COMPLETE), (1, 1, [B], COMPLETE), (1, 1, [A], StopReason.NO_ROW)
    )

    lines = folded(profile)
    assert lines == sorted(lines)
    assert [line.partition(";")[0] for line in lines] == ["nginx", *["redis-server"] * 3]


def test_stacks_with_the_same_text_are_one_line():
    """The stacks are of two threads of one process, or have two addresses in one function."""
    same = [Location(None, 1, 0xA), Location(None, 2, 0xA)]
    profile = profile_of(
        (1, 1, [A], COMPLETE), (1, 5, [A], COMPLETE), (1, 1, [same[0]], COMPLETE), (1, 1, [same[1]], COMPLETE)
    )

    assert folded(profile, Namer(lambda location: f"f{location.lookup:x}")) == ["redis-server;fa 4"]


def test_stop_reason_of_a_truncated_stack_follows_the_process():
    for reason in StopReason:
        [line] = folded(profile_of((1, 1, [A, B], reason)))
        marker = "" if reason is COMPLETE else f"[truncated: {reason}];"
        assert line == f"redis-server;{marker}fb;fa 1"


def test_truncated_and_complete_stacks_are_different_lines():
    profile = profile_of((1, 1, [A], COMPLETE), (1, 1, [A], StopReason.MAX_FRAMES))

    assert folded(profile) == ["redis-server;[truncated: max_frames];fa 1", "redis-server;fa 1"]


def test_threads_option_makes_threads_the_roots():
    profile = profile_of((1, 1, [A], COMPLETE), (1, 5, [A], StopReason.NO_ROW), (2, 2, [A], COMPLETE))

    assert folded(profile, threads=True) == ["bio/5;[truncated: no_row];fa 1", "main/1;fa 1", "worker/2;fa 1"]


def test_threads_that_reuse_a_tid_are_different_roots():
    profile = profile_of((1, 5, [A], COMPLETE))
    profile.threads |= {ThreadKey(1, 5, 9): "later"}
    profile.keep(next(iter(profile.totals))._replace(start_time=9), 0, 0, 0, 2)

    assert folded(profile, threads=True) == ["bio/5;fa 1", "later/5;fa 2"]


def test_process_and_thread_names_are_cleaned():
    profile = profile_of((1, 1, [A], COMPLETE))
    profile.processes[1], profile.threads[ThreadKey(1, 1)] = "a;b\n", "c;d\n"

    assert folded(profile) == ["a:b?;fa 1"]
    assert folded(profile, threads=True) == ["c:d?/1;fa 1"]


def test_inlined_functions_are_frames():
    class Inlines(Namer):
        def frames(self, _location: Location) -> tuple[NamedFrame, ...]:
            inner = NamedFrame("inner_[i]", "inner", file="a.c", line=3, inlined=True)
            return inner, NamedFrame("outer", "outer", file="a.c", line=9)

    assert folded(profile_of((1, 1, [A], COMPLETE)), Inlines()) == ["redis-server;outer;inner_[i] 1"]


def test_stats_list_unnamed_locations_and_problems():
    profile = profile_of((1, 1, [A], COMPLETE))
    profile.stats.note("a problem")
    report = name_profile(profile, Namer())
    assert report.host == os.uname().nodename
    stats = report.stats.document

    assert stats["problems"] == ["a problem", "libc.so.6: no lines"]
    assert stats["unnamed"] == [{"where": "/bin/x", "places": 3, "why": "stripped", "hint": ""}]


def test_empty_profile_has_no_lines():
    assert folded(profile_of()) == []


def test_report_has_no_cpu_weight_without_measured_cpu_time():
    profile = profile_of((1, 1, [A], COMPLETE))
    assert name_profile(profile, Namer()).weights == ("samples", "wall_ns")
    profile.add(sample(ThreadKey(1, 1), [A], Stack((), COMPLETE), wall_ns=9, cpu_ns=5))
    report = name_profile(profile, Namer())
    assert (report.weights, report.total("cpu_ns")) == (("samples", "wall_ns", "cpu_ns"), 5)
