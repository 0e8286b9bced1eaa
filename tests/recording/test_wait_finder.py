"""Which threads a futex word may name."""

from types import SimpleNamespace

from sfsample.recording.wait_finder import WaitFinder
from tests.recording.fake_process import FakeClock, FakeProcess


def test_ids_are_those_of_living_threads_in_their_own_namespace(monkeypatch):
    process, asked = FakeProcess(FakeClock()), []
    monkeypatch.setattr(process, "own_id", lambda tid: asked.append(tid) or tid - 100)
    process.proc.memory = SimpleNamespace()
    finder = WaitFinder(process, None, None, None, None, details=False)
    finder.follow([101, 102])
    assert finder._tids == {1: 101, 2: 102}
    finder.follow([102, 103])
    assert finder._tids == {2: 102, 3: 103}
    assert asked == [101, 102, 103], "an id does not change while the thread lives"
