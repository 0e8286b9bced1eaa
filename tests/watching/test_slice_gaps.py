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


def test_gap_at_the_end_is_kept(recorder: SliceRecorder, sink: Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slice_recorder.time, "time", lambda: 200)
    recorder.close()
    assert sink.add_gap.call_count == 0
    recorder.begin_gap(100, "the target ended")
    recorder.close()
    sink.add_gap.assert_called_once_with("bank", 100, 200, "the target ended")
