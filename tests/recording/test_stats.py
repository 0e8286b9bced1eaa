"""Which recordings are a result, and which are an error."""

import pytest

from sfsample.core.snapshot import Capture
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.recording.stats import Stats, check_result


def stats(**values: object) -> Stats:
    made = Stats(99)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_check_result_accepts_recordings_without_loss() -> None:
    check_result(stats(samples=1, ended_by="target"), [1])
    check_result(stats(ticks=10, ended_by="duration"), [1])
    check_result(stats(ticks=0, ended_by="signal"), [1])
    check_result(stats(ticks=5, ended_by="target"), [1])


def test_check_result_refuses_recordings_without_result() -> None:
    with pytest.raises(NoSuchProcess, match="ended before the first sample: 1, 2"):
        check_result(stats(ticks=1, ended_by="target"), [1, 2])
    with pytest.raises(SfsampleError, match="every tick"):
        check_result(stats(ticks=5, late_ticks=5, ended_by="duration"), [1])
    failed = stats(ticks=5, ended_by="duration")
    failed.captures[Capture.FAILED] = 5
    failed.problems["not captured: asleep"] = 5
    with pytest.raises(SfsampleError, match="every capture of 1 failed") as caught:
        check_result(failed, [1])
    assert caught.value.help == ("not captured: asleep",)
