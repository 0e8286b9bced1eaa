"""The schedule of `watch`, with a simulated clock, and what it says of failures that last.

Slot k begins at start + k * every, however long a slice takes; a slot that has passed is skipped.  A failure
is said once, and again when it is over; nothing ends the watch after its first slot, and a full disk never.
"""

import os
import re
from collections.abc import Callable, Sequence
from errno import EDQUOT, ENOSPC, EROFS
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.errors import NoSuchProcess, NotPermitted, SfsampleError
from sfsample.history.facts import Slice
from sfsample.process.search import find_by_unit, why_no_unit
from sfsample.recording.profile import Profile
from sfsample.recording.stats import Stats
from sfsample.report.report import OUTERMOST, WEIGHTS, ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.watching import loop, slice_recorder
from sfsample.watching.loop import slots
from sfsample.watching.program import Sink, Trouble
from sfsample.watching.pull.door import Wanted
from sfsample.watching.slice_files import not_written
from sfsample.watching.slice_recorder import Share
from tests.builders.watches import watch_of


class SimulatedClock:
    """The clock of the module `time`; it moves only in `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    made = SimulatedClock()
    monkeypatch.setattr(loop, "time", made)
    return made


def slice_starts(clock: SimulatedClock, every_s: float, lengths_s: list[float]) -> list[tuple[float, float]]:
    """Run slices of these lengths; return when each began, and how much of its slot was left."""
    starts, to_run = [], list(lengths_s)
    for left_s in slots(every_s, lambda: not to_run, lambda: False):
        starts.append((round(clock.now - 1000, 6), round(left_s, 6)))
        clock.sleep(to_run.pop(0))
    return starts


def test_slots_begin_on_time(clock: SimulatedClock) -> None:
    assert slice_starts(clock, 60, [10, 10.5, 9.9, 59]) == [(0, 60), (60, 60), (120, 60), (180, 60)]


def test_missed_slots_are_skipped_and_the_schedule_kept(clock: SimulatedClock) -> None:
    assert [at for at, _ in slice_starts(clock, 60, [10, 170, 10, 10])] == [0, 60, 240, 300]


def test_slot_that_has_just_begun_is_used(clock: SimulatedClock) -> None:
    assert slice_starts(clock, 60, [60.5, 59.5, 10]) == [(0, 60), (60.5, 59.5), (120, 60)]


def test_slices_without_gaps_do_not_drift(clock: SimulatedClock) -> None:
    """With --for equal to --every, and 50 ms to write each file, each slot gets one slice."""
    starts: list[float] = []
    for left_s in slots(1, lambda: len(starts) == 1000, lambda: False):
        starts.append(clock.now - 1000)
        clock.sleep(min(1, left_s) + 0.05)
    assert [round(at - slot, 6) <= 0.06 for slot, at in enumerate(starts)] == [True] * 1000


def test_slots_that_pass_while_a_profile_is_recorded_are_skipped(clock: SimulatedClock) -> None:
    lengths_s = [0.0, 30.0, 100.0]  # of requested profiles

    def between() -> bool:
        if lengths_s:
            clock.sleep(lengths_s.pop(0))
            return True
        return False

    starts: list[float] = []
    for left_s in slots(60, lambda: len(starts) == 3, between):
        starts.append(clock.now - 1000)
        assert 0 < left_s <= 60
        clock.sleep(10)
    assert [round(at) for at in starts] == [0, 140, 180]


def test_stop_request_ends_the_wait(clock: SimulatedClock) -> None:
    answers = iter([False, False, False, True])
    left = slots(3600, lambda: next(answers, True), lambda: False)
    assert next(left) == 3600
    assert list(left) == []
    assert clock.now < 1010


@pytest.mark.parametrize(
    ("name", "label"),
    [("redis-server", "redis-server"), ("python3 app.py", "python3_app.py"), ("../../etc/x", "_.._etc_x"),
     (".hidden", "hidden"), ("...", "target"), ("a\n\x1b[31m\udcff", "a___31m_"), ("x" * 500, "x" * 100),
     ("$(reboot)`;|", "__reboot____")],
)  # fmt: skip
def test_label_is_harmless_in_a_path(name: str, label: str) -> None:
    assert loop._label(name, ()) == label


def test_label_is_made_of_pids_or_unit() -> None:
    assert loop._label("", [3, 1, 3]) == "3-1"
    assert loop._label("nginx", ()) == "nginx"


def test_unit_selects_all_its_processes(tmp_path: Path) -> None:
    service = "nginx.service"
    groups = {
        1: "0::/init.scope\n",
        20: f"0::/system.slice/{service}\n",
        3: f"9:name=systemd:/system.slice/{service}/worker\n4:memory:/\n",
        4: f"4:memory:/system.slice/{service}\n0::/\n",
        5: f"0::/system.slice/my{service}\n",
        6: f"0::/system.slice/{service}\n",
        os.getpid(): f"0::/system.slice/{service}\n",
    }
    for pid, text in groups.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
        (tmp_path / str(pid) / "cmdline").write_bytes(b"" if pid == 6 else b"nginx\0")
    (tmp_path / "7").mkdir()  # has ended
    assert find_by_unit("nginx", str(tmp_path)) == find_by_unit(service, str(tmp_path)) == [3, 20]
    assert find_by_unit("system.slice", str(tmp_path)) == [3, 5, 20]
    assert find_by_unit("ngin", str(tmp_path)) == []


def unit_directory(root: Path, groups: dict[int, str]) -> str:
    """Make a /proc with these processes."""
    for pid, group in groups.items():
        (root / "proc" / str(pid)).mkdir(parents=True)
        (root / "proc" / str(pid) / "cgroup").write_text(f"0::/system.slice/{group}\n")
        (root / "proc" / str(pid) / "cmdline").write_bytes(b"x\0")
    return str(root / "proc")


def test_misspelt_unit_names_those_that_exist(tmp_path: Path) -> None:
    assert why_no_unit("ngnix", unit_directory(tmp_path, {1: "nginx.service", 2: "cron.service"})) == [
        "units with processes and similar names: nginx.service",
        "does the unit exist, and is it active?  systemctl status ngnix.service",
    ]


class Messages:
    """A watch whose slices do what a test says, without a process; `lines` of a slot are what it printed."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
    ) -> None:
        self.watch = watch_of("-n", "bank", "--output-dir", "gone", *words)
        self.watch._recorder.may_fail = False
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def slot(self, outcome: Exception | list[int] | None) -> list[str]:
        """Run a slot in which the target's pids are `outcome`, or which fails; return the lines."""

        def find() -> list[int]:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome or []

        self._monkeypatch.setattr(self.watch._targets, "pids", find)
        self._monkeypatch.setattr(self.watch._recorder, "record", lambda *_: Stats(19))
        self.watch.slot(1)
        return self._capsys.readouterr().err.splitlines()


@pytest.fixture
def messages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Messages:
    return Messages(capsys, monkeypatch)


STAMP = r"sfsample: \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ "
GONE = NoSuchProcess(0, "no such process: bank", "look elsewhere")


def test_missing_target_is_said_once_and_again_when_it_is_found(messages: Messages) -> None:
    first, *more = messages.slot(GONE)
    assert re.fullmatch(f"{STAMP}no such process: bank", first)
    assert more == [
        "  look elsewhere",
        "  sfsample looks for the target again at every slice; this message comes once",
    ]
    assert messages.slot(GONE) == []
    [found] = messages.slot([12])
    assert re.fullmatch(f"{STAMP}found bank: process 12", found)
    assert messages.slot([12, 13]) == []
    assert messages.slot([14, 15])[0].endswith(" found bank: processes 14, 15")
    assert len(messages.slot(GONE)) == 3
    assert len(messages.slot([14, 15])) == 1, "the same process, after it was missed"


def test_quiet_watch_says_failures_and_their_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Messages(capsys, monkeypatch, "-q")
    assert quiet.slot([12]) == []
    assert len(quiet.slot(GONE)) == 3
    assert len(quiet.slot([13])) == 1


@pytest.mark.parametrize("failure", [NotPermitted(1, "no"), OSError("no file left"), MemoryError()])
def test_only_the_first_slot_may_fail(messages: Messages, failure: Exception) -> None:
    messages.watch._recorder.may_fail = True
    with pytest.raises(type(failure)):
        messages.slot(failure)
    messages.watch._recorder.may_fail = True
    messages.slot([12])
    assert messages.slot(failure)[-1] == "  slices are lost until then; this message comes once"
    assert messages.slot(failure) == []


@pytest.mark.parametrize("number", [ENOSPC, EDQUOT])
def test_full_disk_is_no_failure_of_the_first_slot(messages: Messages, number: int) -> None:
    full = not_written("/d", OSError(number, os.strerror(number)))
    messages.watch._recorder.may_fail = True
    assert messages.slot(full)[1] == "  free some space"
    messages.watch._recorder.may_fail = True
    with pytest.raises(SfsampleError):
        messages.slot(not_written("/d", OSError(EROFS, "read-only")))


def test_slice_is_not_cut_in_its_first_second(
    clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A client that asks again and again cannot make a file of each tick."""
    cut_s = []

    def record(*_: object, profile: Profile, should_stop: Callable[[], bool], **__: object) -> None:
        begin_s = clock.now
        while not should_stop():
            clock.sleep(0.01)
        cut_s.append(clock.now - begin_s)
        profile.stats.ticks = 1

    monkeypatch.setattr(slice_recorder.api, "record", record)
    watched = watch_of("-n", "bank", "--output-dir", str(tmp_path), "-q")
    assert watched.door.ask(Wanted(1)) == 0
    monkeypatch.setattr(watched._targets, "pids", lambda: [1])
    watched.slot(60)
    assert [round(each, 1) for each in cut_s] == [1.0]


def test_watchdog_is_fed_after_a_tick_only(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    asked: list[int] = []

    def record(*_: object, profile: Profile, should_stop: Callable[[], bool], **__: object) -> None:
        for tick in (1, 2, 2, 2, 2, 3):  # the second one takes long: it is asked meanwhile
            profile.stats.ticks = tick
            before = len(fed)
            should_stop()
            asked.append(len(fed) - before)

    monkeypatch.setattr(slice_recorder.api, "record", record)
    monkeypatch.setattr(messages.watch, "_say_alive", lambda: fed.append(1))
    monkeypatch.setattr(messages.watch._targets, "pids", lambda: [12])
    messages.watch.slot(1)
    assert asked == [1, 1, 0, 0, 0, 1]


def test_many_processes_are_not_all_listed(messages: Messages) -> None:
    assert messages.slot(list(range(1, 10)))[0].endswith("found bank: processes 1, 2, 3, 4, 5 and 4 more")


class Kept(Sink):
    """A sink; it keeps slices and gaps in lists, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.slices: list[Slice] = []
        self.gaps: list[tuple[str, float, float, str]] = []

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:
        if self.failure:
            raise self.failure
        assert parts == [whole]
        self.slices.append(whole)
        return "kept"

    def add_gap(self, service: str, begin_s: float, end_s: float, why: str) -> None:
        self.gaps.append((service, begin_s, end_s, why))


class Recording:
    """What replaces `api.record`: profiles with a sample, for as long as the test says."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self.lengths_s: list[tuple[float, str]] = []  # and what ended them

    def __call__(self, *_: object, profile: Profile, **__: object) -> None:
        length_s, profile.stats.ended_by = self.lengths_s.pop(0)
        profile.started_ns, profile.stats.samples = round(self._clock[0] * 1e9), 1
        profile.stats.duration_s = length_s
        self._clock[0] += length_s


def test_answered_trigger_is_counted() -> None:
    watching = watch_of("-n", "bank", "--output-dir", "gone")
    watching._response.answer = lambda *_: None
    watching.triggers.fire()
    assert watching._serve()
    assert 'sfsample_triggers_total{condition="SIGUSR1"} 1\n' in watching.door.metrics()


def test_sinks_get_slices_and_the_gaps_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    recording = Recording(clock)
    recording.lengths_s = [(60, "duration"), (20, "target"), (30, "duration")]
    found: list[list[int]] = [[1], [1], [], [2]]
    kept, broken = Kept(), Kept(OSError("gone"))
    watching = watch_of("-n", "bank", "--output-dir", "gone")
    watching._recorder._sinks = [(broken, Trouble(print, "")), (kept, Trouble(print, ""))]
    watching._recorder.may_fail = False

    def find() -> list[int]:
        if pids := found.pop(0):
            return pids
        raise GONE

    monkeypatch.setattr(slice_recorder.api, "record", recording)
    monkeypatch.setattr(watching._targets, "pids", find)
    monkeypatch.setattr(loop.time, "time", lambda: clock[0])
    absent = []
    for at in range(4):
        assert (watching.slot(60) is None) is (at == 2)
        absent.append(watching._is_absent)
        clock[0] += 5 if absent[-1] else 0
    assert absent == [False, True, True, False]
    assert [(one.begin_s, one.end_s, one.service) for one in kept.slices] == [
        (1000, 1060, "bank"), (1060, 1080, "bank"), (1090, 1120, "bank")]  # fmt: skip
    assert kept.gaps == broken.gaps == [("bank", 1080, 1090, "the target ended")]


@pytest.mark.parametrize(
    ("cpu_s", "sampled_s", "share"),
    [(0.6, 0.6, 0.01), (0.6, 0.3, 0.005), (9.0, 0.3, 0.0025), (0.1, 0.4, 0.01), (0.9, 0.9, 0.005)],
    ids=[
        "only samples",
        "naming took as long",
        "naming took all",
        "a child took samples",
        "the first stacks took more",
    ],
)
def test_share_is_that_of_the_whole_watch(
    cpu_s: float, sampled_s: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0, process_time=lambda: 7.0)
    monkeypatch.setattr(slice_recorder, "time", clock)
    made = Share(0.01, lambda: clock.process_time())  # noqa: PLW0108 - it changes
    made.sampled_s = sampled_s
    clock.monotonic, clock.process_time = (lambda: 1060.0), (lambda: 7.0 + cpu_s)
    assert made.left() == pytest.approx(share)
    clock.monotonic = lambda: 1120.0
    assert made.left() == pytest.approx(0.01), "of the slice after it"


def test_slice_that_no_sink_keeps_has_no_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = Recording([1000.0])
    recording.lengths_s = [(60, "duration")] * 2
    watching = watch_of("-n", "bank")
    watching._recorder._sinks = [(Kept(OSError("no space left")), Trouble(print, ""))]
    watching._recorder.may_fail = False
    monkeypatch.setattr(slice_recorder.api, "record", recording)
    monkeypatch.setattr(watching._targets, "pids", lambda: [1])
    assert watching.slot(60) is None
    watching._recorder._sinks = [(Kept(), Trouble(print, ""))]
    assert watching.slot(60) is not None


@pytest.mark.parametrize(("words", "frames"), [([], ["[idle: worker-*]"]), (["--idle"], ["[epoll_wait]"])])
def test_threads_that_wait_for_work_are_one_frame(
    words: list[str], frames: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = ReportBuilder(WEIGHTS)
    wait = NamedFrame("[epoll_wait]", raw="event", kind="w", found="idle")
    builder.add(ReportThread("app", "worker-1", 7, 7), [wait], OUTERMOST, (5, 5, 0))
    monkeypatch.setattr(slice_recorder.api, "named", lambda *_: builder.finish())
    report, _ = watch_of("-n", "bank", *words)._recorder._named(Profile(19))
    assert [frame.text for frame in report.frames] == frames
