"""Folded stacks: one line each, root first, sorted; a loss stays visible right after the process."""

from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location
from sfsample.recording.profile import Profile, ThreadKey
from sfsample.report.from_profile import name_profile
from sfsample.report.writers.folded import folded_lines
from sfsample.symbolize.missing import MissingName
from sfsample.symbolize.named_frame import NamedFrame

A, B, C = (Location(None, n, n) for n in (0xA, 0xB, 0xC))


def profile(*samples: tuple[int, int, list[Location], StopReason]) -> Profile:
    made = Profile(99.0)
    made.processes = {1: "redis-server", 2: "nginx"}
    made.threads = {ThreadKey(1, 1): "main", ThreadKey(1, 5): "bio", ThreadKey(2, 2): "worker"}
    for pid, tid, places, reason in samples:
        made.add(ThreadKey(pid, tid), places, Stack((), reason), at_ns=0, wall_ns=0, cpu_ns=0)
    return made


class Namer:
    """Calls a place by its address, or by its number alone."""

    problems = ("libc.so.6: no lines",)

    def __init__(self, name=lambda place: f"f{place.address:x}") -> None:
        self._name = name

    def frames(self, place: Location) -> tuple[NamedFrame, ...]:
        return (NamedFrame(self._name(place), None, None, None),)

    def unnamed(self) -> list[MissingName]:
        return [MissingName("/bin/x", 3, "stripped")]


def folded(made: Profile, namer=Namer(), **options) -> list[str]:  # noqa: B008 - it has no state
    return list(folded_lines(name_profile(made, namer), **options))


OK = StopReason.OUTERMOST


def test_root_first_and_counted():
    """Places are kept innermost first and written outermost first."""
    made = profile((1, 1, [A, B, C], OK), (1, 1, [A, B, C], OK), (1, 1, [B, C], OK))

    assert folded(made) == ["redis-server;fc;fb 1", "redis-server;fc;fb;fa 2"]


def test_lines_are_sorted():
    made = profile((2, 2, [A], OK), (1, 1, [C], OK), (1, 1, [B], OK), (1, 1, [A], StopReason.NO_ROW))

    lines = folded(made)
    assert lines == sorted(lines)
    assert [line.partition(";")[0] for line in lines] == ["nginx", *["redis-server"] * 3]


def test_stacks_that_read_the_same_are_one_line():
    """Two threads of one process; and two addresses in one function."""
    same = [Location(None, 1, 0xA), Location(None, 2, 0xA)]
    made = profile((1, 1, [A], OK), (1, 5, [A], OK), (1, 1, [same[0]], OK), (1, 1, [same[1]], OK))

    assert folded(made, Namer(lambda place: f"f{place.lookup:x}")) == ["redis-server;fa 4"]


def test_the_reason_of_a_truncated_stack_comes_right_after_the_process():
    for reason in StopReason:
        [line] = folded(profile((1, 1, [A, B], reason)))
        marker = "" if reason is OK else f"[truncated: {reason}];"
        assert line == f"redis-server;{marker}fb;fa 1"


def test_a_truncated_stack_is_another_line_than_a_whole_one():
    made = profile((1, 1, [A], OK), (1, 1, [A], StopReason.MAX_FRAMES))

    assert folded(made) == ["redis-server;[truncated: max_frames];fa 1", "redis-server;fa 1"]


def test_threads_are_roots_when_asked_for():
    made = profile((1, 1, [A], OK), (1, 5, [A], StopReason.NO_ROW), (2, 2, [A], OK))

    assert folded(made, threads=True) == ["bio/5;[truncated: no_row];fa 1", "main/1;fa 1", "worker/2;fa 1"]


def test_an_id_that_was_given_to_another_thread_is_another_root():
    made = profile((1, 5, [A], OK))
    made.threads |= {ThreadKey(1, 5, 9): "later"}
    made.counts[next(iter(made.counts))._replace(born=9)] = 2

    assert folded(made, threads=True) == ["bio/5;fa 1", "later/5;fa 2"]


def test_names_of_processes_and_threads_are_cleaned():
    made = profile((1, 1, [A], OK))
    made.processes[1], made.threads[ThreadKey(1, 1)] = "a;b\n", "c;d\n"

    assert folded(made) == ["a:b?;fa 1"]
    assert folded(made, threads=True) == ["c:d?/1;fa 1"]


def test_inlined_functions_are_frames():
    class Inlines(Namer):
        def frames(self, _place: Location) -> tuple[NamedFrame, ...]:
            inner = NamedFrame("inner_[i]", "inner", None, None, "a.c", 3, inlined=True)
            return inner, NamedFrame("outer", "outer", None, None, "a.c", 9)

    assert folded(profile((1, 1, [A], OK)), Inlines()) == ["redis-server;outer;inner_[i] 1"]


def test_what_has_no_name_is_among_the_statistics():
    made = profile((1, 1, [A], OK))
    made.stats.note("a problem")
    stats = name_profile(made, Namer()).stats

    assert stats["problems"] == ["a problem", "libc.so.6: no lines"]
    assert stats["unnamed"] == [{"where": "/bin/x", "places": 3, "why": "stripped", "hint": ""}]


def test_nothing():
    assert folded(profile()) == []


def test_cpu_time_that_nobody_measured_is_no_zero():
    made = profile((1, 1, [A], OK))
    assert name_profile(made, Namer()).weights == ("samples", "wall_ns")
    made.add(ThreadKey(1, 1), [A], Stack((), OK), at_ns=0, wall_ns=9, cpu_ns=5)
    report = name_profile(made, Namer())
    assert (report.weights, report.total("cpu_ns")) == (("samples", "wall_ns", "cpu_ns"), 5)
