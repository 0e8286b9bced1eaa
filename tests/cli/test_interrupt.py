"""Signals request a stop, and only a second Ctrl-C interrupts."""

import signal

import pytest

from sfsample.cli import interrupt as interrupt_module
from sfsample.cli import main
from sfsample.cli.interrupt import Interrupt


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_first_signal_requests_a_stop_and_second_one_raises(
    second: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(interrupt_module.time, "monotonic", lambda: clock[0])
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupt() as interrupt:
        assert not interrupt()
        signal.raise_signal(signal.SIGTERM)
        assert interrupt()
        clock[0] += 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == [
            signal.SIG_DFL
        ] * 2
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize(
    ("sent", "other"), [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT, signal.SIGTERM)]
)
def test_a_signal_that_comes_twice_at_once_is_one_request(
    sent: signal.Signals, other: signal.Signals
) -> None:
    """As timeout(1) sends it: to the process and to its group."""
    with Interrupt() as interrupt:
        for _ in range(3):
            signal.raise_signal(sent)
        assert interrupt()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(other)


def test_ctrl_c_ends_the_process_while_main_handles_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one would give a traceback."""
    handlers: list[object] = []

    def interrupted(_argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("sfsample.cli._run", interrupted)
    monkeypatch.setattr("sfsample.cli.say", lambda _what: handlers.append(signal.getsignal(signal.SIGINT)))
    before = signal.getsignal(signal.SIGINT)
    try:
        assert main([]) == 1
    finally:
        signal.signal(signal.SIGINT, before)
    assert handlers == [signal.SIG_DFL]


def test_ignored_sighup_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt()
    finally:
        signal.signal(signal.SIGHUP, before)


class Lock:
    """Held by the handler; the second Ctrl-Z arrives when it has just been given back."""

    held = False

    def acquire(self) -> None:
        assert not self.held
        self.held = True

    def release(self) -> None:
        self.held = False
        if self.again:
            self.again = False
            signal.raise_signal(signal.SIGTSTP)

    again = True


def test_ctrl_z_right_after_another_waits_for_the_lock_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it suspended sfsample while a thread of the target was held (1 in 16 runs of a live test)."""
    lock, suspended_with_lock = Lock(), []
    monkeypatch.setattr("sfsample.cli.interrupt.SUSPEND_LOCK", lock)
    monkeypatch.setattr("os.kill", lambda _pid, number: suspended_with_lock.append((number, lock.held)))
    with Interrupt():
        signal.raise_signal(signal.SIGTSTP)
    assert suspended_with_lock == [(signal.SIGSTOP, True)] * 2
    assert not lock.held
