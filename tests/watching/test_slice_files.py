"""Which files `watch` deletes: of its label and format only, and no new file, however the clock is set."""

import os
import time
from pathlib import Path

import pytest

from sfsample.watching import slice_files
from sfsample.watching.options import Keep
from sfsample.watching.slice_files import SliceFiles

DAY_S = 86400


class Clocks:
    """The clock of the file names, which may be set, and the one that never is."""

    CLOCK_BOOTTIME = time.CLOCK_BOOTTIME
    strptime, strftime, gmtime = (
        staticmethod(time.strptime),
        staticmethod(time.strftime),
        staticmethod(time.gmtime),
    )

    def __init__(self) -> None:
        self.set_s, self.passed_s = 1_800_000_000.0, 5000.0

    def time(self) -> float:
        return self.set_s + self.passed_s

    def clock_gettime(self, _: int) -> float:
        return self.passed_s


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(slice_files, "time", made)
    return made


@pytest.fixture
def files(tmp_path: Path, clocks: Clocks) -> SliceFiles:
    return SliceFiles(str(tmp_path), "redis", ".json")


def made(files: SliceFiles, *limits: float | None, size: int = 0) -> str:
    """Write a slice and delete old ones; return its name."""
    path = files.free_path()
    Path(path).write_bytes(bytes(size))
    files.delete_old(path, Keep(**dict(zip(("keep", "keep_for", "keep_bytes"), limits, strict=False))))
    return os.path.basename(path)


def names(files: SliceFiles) -> list[str]:
    return sorted(os.listdir(files.directory))


def test_oldest_files_go_until_the_rest_is_small_enough(files: SliceFiles) -> None:
    written = [made(files, None, None, size=10) for _ in range(4)]
    written.append(made(files, None, None, 25, size=10))
    assert names(files) == written[-2:]
    written.append(made(files, None, None, 25, size=40))  # larger than all that may stay
    assert names(files) == written[-1:]


def test_only_slices_of_the_label_and_format_are_deleted(tmp_path: Path) -> None:
    slices = [f"redis-2001010{day}T000000Z.json" for day in range(1, 6)]
    others = ["redis-notes.json", "redis-20010101T000000Z.json.gz", "redis-2-20010101T000000Z.json",
              "xredis-20010101T000000Z.json", "redis-20010101T000000.json", "redis-20019999T000000Z.json",
              "redis-20010101T000000Z.folded", "redis-20010101T000000Z.speedscope.json"]  # fmt: skip
    for keep, keep_for_s in ((2, None), (None, DAY_S)):
        for name in (*slices, *others):
            (tmp_path / name).touch()
        files = SliceFiles(str(tmp_path), "redis", ".json")
        new = made(files, keep, keep_for_s)
        kept = [slices[-1]] if keep else []
        assert names(files) == sorted([*kept, new, *others])
        (tmp_path / new).unlink()


def test_number_and_age_go_together(files: SliceFiles, clocks: Clocks) -> None:
    written = []
    for _ in range(6):
        written.append(made(files, 3, 2.5 * DAY_S))
        clocks.passed_s += DAY_S
    assert names(files) == written[-3:]
    clocks.passed_s += DAY_S
    assert names(files) == written[-3:], "without a new slice nothing is deleted"
    assert made(files, 3, 2.5 * DAY_S) in names(files)
    assert len(names(files)) == 2


@pytest.mark.parametrize("change_s", [400 * DAY_S, -400 * DAY_S])
@pytest.mark.parametrize(("keep", "keep_for_s"), [(3, None), (None, 2.5 * DAY_S)])
def test_setting_the_clock_changes_no_age(
    files: SliceFiles, clocks: Clocks, change_s: int, keep: int | None, keep_for_s: float | None
) -> None:
    written = []
    for number in range(10):
        if number == 5:
            clocks.set_s += change_s
        written.append(made(files, keep, keep_for_s))
        assert set(names(files)) == set(written[-3:])
        clocks.passed_s += DAY_S


def test_files_of_the_future_are_not_preferred_to_new_ones(
    files: SliceFiles, clocks: Clocks, tmp_path: Path
) -> None:
    made(files)
    clocks.set_s -= 400 * DAY_S
    later = SliceFiles(str(tmp_path), "redis", ".json")  # a restart
    clocks.passed_s += 1
    new = made(later, 1)
    assert names(later) == [new]


def test_slices_never_share_a_file(files: SliceFiles) -> None:
    """The clock may be set back, so the same second may come twice."""
    assert len({made(files) for _ in range(3)}) == 3
    assert len(names(files)) == 3


def test_failed_deletion_is_an_error_that_names_the_file(files: SliceFiles, tmp_path: Path) -> None:
    (tmp_path / "redis-20010101T000000Z.json").mkdir()
    with pytest.raises(OSError, match=r"redis-20010101T000000Z\.json"):
        made(files, 1)


def test_missing_directory_is_no_error_before_a_slice_is_written(tmp_path: Path) -> None:
    assert (
        SliceFiles(str(tmp_path / "gone"), "redis", ".json").free_path().startswith(f"{tmp_path}/gone/redis-")
    )
