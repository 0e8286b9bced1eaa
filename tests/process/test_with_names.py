"""No failure of naming costs a result, and a signal ends the look-up of names."""

import _thread
import signal
import threading

import pytest

from sfsample.cli.interrupt import Interrupt
from sfsample.process.tracer_thread import with_names


class Namer:
    why = ""

    def give_up(self, why: str) -> None:
        self.why = why


@pytest.fixture
def namer() -> Namer:
    return Namer()


def test_names_are_looked_up_once(namer: Namer) -> None:
    calls: list[str] = []
    with Interrupt() as interrupt:
        assert with_names(lambda: calls.append(namer.why), namer.give_up, interrupt) is None
    assert (calls, namer.why) == ([""], "")


@pytest.mark.parametrize("failure", [OSError(12, "Cannot allocate memory"), MemoryError(), KeyError("x")])
def test_failure_costs_names_and_is_reported(namer: Namer, failure: Exception) -> None:
    def work() -> str:
        if not namer.why:
            raise failure
        return "addresses"

    with Interrupt() as interrupt:
        assert with_names(work, namer.give_up, interrupt) == "addresses"
    assert namer.why.startswith("the look-up of names failed: ")
    assert type(failure).__name__ in namer.why


def refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_names_are_looked_up_here_if_no_thread_can_be_started(
    namer: Namer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with Interrupt() as interrupt:
        assert with_names(threading.get_ident, namer.give_up, interrupt) == threading.get_ident()
        assert not namer.why
        with pytest.raises(KeyboardInterrupt):
            with_names(lambda: _thread.interrupt_main() or "names", namer.give_up, begun(interrupt))


def begun(interrupt: Interrupt) -> Interrupt:
    """Let the next signal be the second one."""
    interrupt.requested = True
    return interrupt


def test_failing_look_up_without_a_thread_costs_names_only(
    namer: Namer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with Interrupt() as interrupt:
        assert (
            with_names(lambda: "addresses" if namer.why else {}["x"], namer.give_up, interrupt) == "addresses"
        )
    assert namer.why.startswith("the look-up of names failed: KeyError")


def test_signal_ends_a_look_up_that_does_not_end(namer: Namer) -> None:
    begun, never = threading.Event(), threading.Event()

    def work() -> str:
        if not namer.why:
            begun.set()
            never.wait()
        return "addresses"

    def interrupt_it() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt_it).start()
    with Interrupt() as interrupt:
        assert with_names(work, namer.give_up, interrupt) == "addresses"
    assert "ended by a signal" in namer.why
    never.set()


def test_a_recording_that_a_signal_has_ended_is_named(namer: Namer) -> None:
    with Interrupt() as interrupt:
        signal.raise_signal(signal.SIGINT)
        assert with_names(lambda: "names", namer.give_up, interrupt) == "names"
    assert not namer.why
