"""Which process a thread is stuck on, and for how long that is set aside."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from sfsample.errors import AlreadyTraced
from sfsample.process import stuck
from sfsample.process.tracer_thread import TracerThread


class Waiting:
    """Work on process `pid` that waits for the order to end."""

    def __init__(self, pid: int) -> None:
        self.pid, self.goes_on, self.os_thread = pid, threading.Event(), 0
        self.ends, self.end = os.pipe()
        self.begun = threading.Event()

    def on_a_pipe(self) -> None:
        self.os_thread = threading.get_native_id()
        self.begun.set()
        os.read(self.ends, 1)

    def on_a_lock(self) -> None:
        self.os_thread = threading.get_native_id()
        self.begun.set()
        self.goes_on.wait()


def is_asleep(os_thread: int) -> bool:
    with open(f"/proc/self/task/{os_thread}/syscall", encoding="ascii") as file:
        return not file.read().startswith("running")


@pytest.mark.parametrize(("way", "waits_for_us"), [("on_a_pipe", False), ("on_a_lock", True)])
def test_target_is_that_of_the_innermost_call(way, waits_for_us):
    inner = Waiting(7)

    class Sampler:
        process = SimpleNamespace(pid=5)

        def tick(self) -> None:
            getattr(inner, way)()

    thread = threading.Thread(target=Sampler().tick)
    thread.start()
    inner.begun.wait()
    while not is_asleep(inner.os_thread):
        time.sleep(0.001)
    assert stuck.target_of(thread.ident) == 7
    assert stuck.waits_for_sfsample(inner.os_thread) is waits_for_us
    inner.goes_on.set()
    os.write(inner.end, b"x")
    thread.join()
    assert stuck.target_of(thread.ident) is None


def test_process_is_set_aside_for_a_while_and_handed_over(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(stuck, "_aside", {})
    monkeypatch.setattr(stuck, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pid = os.getpid()
    stuck.set_aside(pid, 0)
    with pytest.raises(AlreadyTraced, match="not sampled for a while"):
        stuck.check_not_aside(pid)
    text = stuck.hand_over()
    monkeypatch.setattr(stuck, "_aside", {})
    stuck.check_not_aside(pid)
    stuck.take_over(text)
    now[0] += 14
    with pytest.raises(AlreadyTraced):
        stuck.check_not_aside(pid)
    now[0] += 1
    stuck.check_not_aside(pid)
    stuck.take_over("no such text")


def test_lock_of_sfsample_is_not_a_stuck_call():
    """Work that waits for another thread of sfsample, however long, is not left behind."""
    waiting, began_s = Waiting(7), time.monotonic()

    def is_over() -> bool:
        if time.monotonic() > began_s + 3:
            waiting.goes_on.set()
        return False

    assert TracerThread(lambda _: waiting.on_a_lock(), is_over, lambda _: True).run() is None
