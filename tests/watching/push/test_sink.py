"""`watch` has child processes push its slices, and does not wait for them."""

import os
import signal
import threading
from contextlib import suppress

import pytest

from sfsample.cli.terminal import say_at
from sfsample.history import RETENTION
from sfsample.watching.history_sink import HistorySink
from sfsample.watching.pull.door import Door
from sfsample.watching.push import sink as sinks
from tests.builders.histories import minute
from tests.builders.watches import watch_of
from tests.watching.push.fake_backend import HANG_S, answer, backend


@pytest.fixture
def directory(tmp_path):
    return str(tmp_path / "history")


@pytest.fixture
def history(directory):
    it = HistorySink(directory, RETENTION, say_at)
    it._tidy_due_s = float("inf")
    yield it
    it.close()


def push_sink(directory, *fakes):
    words = [word for fake in fakes for word in ("--push", f"pyroscope={fake.address}")]
    *_, (sink, _) = watch_of("1", "--history", directory, *words)._recorder._sinks
    return sink


def closed(at):
    whole = minute(at)
    return whole, [whole]


def test_slices_reach_a_backend_and_a_child_that_is_killed_is_started_again(directory, history):
    with backend() as fake:
        sink = push_sink(directory, fake)
        history.prepare()
        sink.prepare()
        for at in range(3):
            history.add(*closed(at))
            sink.add(*closed(at))
            fake.arrived.get(timeout=HANG_S)
        os.kill(sink._child.pid, signal.SIGKILL)
        sink._child.wait()
        history.add(*closed(3))
        sink.add(*closed(3))
        fake.arrived.get(timeout=HANG_S)
        os.kill(sink._child.pid, signal.SIGTERM)  # as systemd does: the last slice is still to come
        history.add(*closed(4))  # the last one, of which no byte says that it is there
        sink.close()
        assert sink._child.returncode == 0
        bodies = [request.body for request in fake.taken]
        assert len(set(bodies)) == 5
        assert sink.metrics()["sfsample_push_lag_seconds"] == {'{backend="pyroscope"}': 0.0}


def test_backend_that_hangs_does_not_hold_the_watch(directory, history, monkeypatch):
    monkeypatch.setattr(sinks, "_END_S", 0.0)
    with backend() as slow:
        hangs = threading.Event()
        slow.behaviours = [lambda client: (hangs.set(), client.recv(1))]
        sink = push_sink(directory, slow)
        history.prepare()
        history.add(*closed(0))
        sink.prepare()
        sink.add(*closed(0))
        assert hangs.wait(HANG_S)
        sink.close()  # kills it
        assert not slow.taken
        assert sink._child.returncode == -signal.SIGKILL
    assert len(history._history.slices()) == 1


def test_child_that_reads_nothing_does_not_hold_the_watch(directory, history, monkeypatch):
    monkeypatch.setattr(sinks, "_END_S", 0.0)
    history.prepare()
    with backend() as fake:
        sink = push_sink(directory, fake)
        sink.prepare()
        os.kill(sink._child.pid, signal.SIGSTOP)
        with suppress(BlockingIOError):
            while True:
                os.write(sink._pipe[1], bytes(4096))
        sink.add(*closed(0))
        sink.close()
    assert sink._child.returncode == -signal.SIGKILL


def test_metrics_are_those_of_the_door(directory, history):
    with backend() as first, backend() as second:
        first.behaviours = [answer("422 No")]
        sink = push_sink(directory, first, second)
        history.add(*closed(0))
        history.add(*closed(1))
        sink.add(*closed(1))
        for fake in (first, first, second, second):
            fake.arrived.get(timeout=HANG_S)
        sink.close()
        with backend() as gone:
            late = push_sink(directory, gone)
        late.add(*closed(2))
        late.add(*closed(3))
        late.close()
        assert late.metrics()["sfsample_push_lag_seconds"] == {'{backend="pyroscope"}': 120.0}
        door = Door(60, 60, [sink])
        assert "sfsample_pushed_slices_total{" not in Door(60, 60).metrics()
        lines = door.metrics().splitlines()
    assert 'sfsample_pushed_slices_total{backend="pyroscope"} 1' in lines
    assert 'sfsample_pushed_slices_total{backend="pyroscope-2"} 2' in lines
    assert 'sfsample_push_lag_seconds{backend="pyroscope"} 0.0' in lines
    assert 'sfsample_push_dropped_slices_total{backend="pyroscope",reason="status 422"} 1' in lines


def test_watch_keeps_a_history_beside_its_files(tmp_path):
    words = [
        "--output-dir",
        str(tmp_path),
        "--history",
        str(tmp_path / "h"),
        "--push",
        "parca=http://127.0.0.1:1",
    ]
    watch = watch_of("1", *words)
    assert [type(sink).__name__ for sink, _ in watch._recorder._sinks] == [
        "FileSink",
        "HistorySink",
        "PushSink",
    ]
    found = watch._recorder._sinks[-1][0].metrics()
    assert set(found["sfsample_pushed_slices_total"]) == {'{backend="parca"}'}
