"""Turns Ctrl-C and the signals that end a process into a request to stop, so the result is still written."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from sfsample.cli.suspension import SuspendHandler


class Interrupt:
    """While it is entered, SIGINT and SIGTERM request a stop; a second SIGINT raises KeyboardInterrupt.

    SIGHUP (the terminal has gone) requests it too, unless nohup(1) made the process ignore it.  Ctrl-Z
    suspends sfsample, and never the target.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: list[tuple[signal.Signals, object]] = []

    def __call__(self) -> bool:
        """Whether a stop was requested."""
        return self.requested

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous.append((number, signal.signal(number, self._request)))
        self._handle_default(signal.SIGHUP, self._request)
        suspend = SuspendHandler()
        for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            self._handle_default(number, suspend)
        return self

    def _handle_default(
        self, number: signal.Signals, handler: Callable[[int, FrameType | None], None]
    ) -> None:
        """Install a handler where the signal has its default action."""
        if signal.getsignal(number) is signal.SIG_DFL:
            self._previous.append((number, signal.signal(number, handler)))

    def _request(self, number: int, _frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous:
            signal.signal(number, handler)  # type: ignore[arg-type]
