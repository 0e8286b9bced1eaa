"""The schedule and the files of `watch`, with a simulated clock.

Slot k begins at start + k * every, however long a slice takes; a slot that has passed is skipped; only files
of `watch` are deleted.
"""

import os
from argparse import Namespace
from pathlib import Path

import pytest

from sfsample.cli import watch
from sfsample.cli.watch import slots
from sfsample.process.find import find_by_unit


class SimulatedClock:
    """The clock of the module `time`; it moves only in `sleep`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    made = SimulatedClock()
    monkeypatch.setattr(watch, "time", made)
    return made


def slice_starts(clock: SimulatedClock, every_s: float, lengths_s: list[float]) -> list[tuple[float, float]]:
    """Run slices of these lengths; return when each began, and how much of its slot was left."""
    starts, to_run = [], list(lengths_s)
    for left_s in slots(every_s, lambda: not to_run):
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
    for left_s in slots(1, lambda: len(starts) == 1000):
        starts.append(clock.now - 1000)
        clock.sleep(min(1, left_s) + 0.05)
    assert [round(at - slot, 6) <= 0.06 for slot, at in enumerate(starts)] == [True] * 1000


def test_stop_request_ends_the_wait(clock: SimulatedClock) -> None:
    answers = iter([False, False, False, True])
    left = slots(3600, lambda: next(answers, True))
    assert next(left) == 3600
    assert list(left) == []
    assert clock.now < 1010


def test_only_slices_of_the_label_are_deleted(tmp_path: Path) -> None:
    slices = [f"redis-2026010{day}T000000Z.folded" for day in range(1, 6)]
    others = ["redis-notes.folded", "redis-20260101T000000Z.folded.gz", "redis-2-20260101T000000Z.folded",
              "xredis-20260101T000000Z.folded", "redis-20260101T000000.folded",
              "redis-20260101T000000Z.json", ".hidden"]  # fmt: skip
    for name in (*slices, *others):
        (tmp_path / name).touch()
    watch._delete_old(str(tmp_path), "redis", ".folded", 2)
    assert sorted(os.listdir(tmp_path)) == sorted([*slices[-2:], *others])


def test_failed_deletion_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch._delete_old(str(tmp_path / "gone"), "redis", ".folded", 2)
    (tmp_path / "a-20260101T000000Z.folded").mkdir()
    (tmp_path / "a-20260102T000000Z.folded").touch()
    watch._delete_old(str(tmp_path), "a", ".folded", 1)
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("sfsample: cannot delete: ")
    assert second.startswith("sfsample: cannot delete: ")


@pytest.mark.parametrize(
    ("name", "label"),
    [("redis-server", "redis-server"), ("python3 app.py", "python3_app.py"), ("../../etc/x", "_.._etc_x"),
     (".hidden", "hidden"), ("...", "target"), ("a\n\x1b[31m\udcff", "a___31m_"), ("x" * 500, "x" * 100),
     ("$(reboot)`;|", "__reboot____")],
)  # fmt: skip
def test_label_is_harmless_in_a_path(name: str, label: str) -> None:
    assert watch._label(Namespace(name=name, unit=None, pid=None)) == label


def test_label_is_made_of_pids_or_unit() -> None:
    assert watch._label(Namespace(name=None, unit=None, pid=[3, 1, 3])) == "3-1"
    assert watch._label(Namespace(name=None, unit="nginx", pid=None)) == "nginx"


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


def test_slices_never_share_a_file(tmp_path: Path) -> None:
    """The clock may be set back, so the same second may come twice."""
    names = []
    for _ in range(3):
        path = watch._free_path(str(tmp_path), "x", ".folded")
        Path(path).touch()
        names.append(path)
    assert sorted(set(names)) == names
