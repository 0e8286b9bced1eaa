"""The gaps between slices have the reason that says most."""

from unittest.mock import Mock

import pytest

from sfsample.watching import slice_recorder
from sfsample.watching.program import Trouble
from sfsample.watching.slice_recorder import SliceRecorder
from tests.builders.watches import watch_of


@pytest.fixture
def sink() -> Mock:
    return Mock()


@pytest.fixture
def recorder(sink: Mock) -> SliceRecorder:
    made = watch_of("-n", "bank")._recorder
    made._sinks = [(sink, Trouble(print, ""))]
    return made


def test_gaps_have_begin_end_and_the_first_reason(recorder: SliceRecorder, sink: Mock) -> None:
    recorder.begin_gap(100, "the target ended")
    recorder.begin_gap(160, "no such process: bank")
    recorder._end_gap(220)
    recorder._end_gap(280)
    recorder.begin_gap(280, "no such process: bank")
    recorder._end_gap(280.5)
    sink.add_gap.assert_called_once_with("bank", 100, 220, "the target ended")


def test_what_is_known_later_replaces_the_reason_that_is_supposed(
    recorder: SliceRecorder, sink: Mock
) -> None:
    recorder.begin_gap(100, slice_recorder._LATE)
    recorder.begin_gap(101, "no sample: idle")
    recorder._end_gap(160)
    sink.add_gap.assert_called_once_with("bank", 100, 160, "no sample: idle")


@pytest.mark.parametrize(("why", "gaps"), [(slice_recorder._LATE, 0), ("the target ended", 1)])
def test_time_to_write_the_last_slice_is_no_gap(
    recorder: SliceRecorder, sink: Mock, monkeypatch: pytest.MonkeyPatch, why: str, gaps: int
) -> None:
    monkeypatch.setattr(slice_recorder.time, "time", lambda: 200)
    recorder.begin_gap(100, why)
    recorder.close()
    assert sink.add_gap.call_count == gaps
