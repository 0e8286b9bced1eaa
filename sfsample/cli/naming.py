"""Looks up names so that no failure of it costs the result, and signals are heard meanwhile.

A file of the target may lie in a file system that does not answer (FUSE, NFS), and the main thread hears a
signal only when the system call that it is in returns.  So another thread looks up names.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from sfsample.cli.interrupt import Interrupt

_POLL_S = 0.1
_PATIENCE_S = 1.5  # for the names, once a stop was requested
_T = TypeVar("_T")
_log = logging.getLogger("sfsample.symbolize")


class Namer(Protocol):
    """A symbolizer, as far as it has a way to stop."""

    def give_up(self, why: str) -> None:
        """Look up no name from now on."""


def with_names(work: Callable[[], _T], namer: Namer, interrupt: Interrupt) -> _T:
    """Return what `work` returns, which looks up names by `namer`.

    If it fails, or a first signal arrives and it does not end soon, it is done again without further
    look-ups.  If no thread can be started, the calling one looks up names.
    """
    results: list[_T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as failure:  # noqa: BLE001 - it costs names, not the result
            _log.debug("looking up names failed", exc_info=True)
            failures.append(failure)

    thread = threading.Thread(target=run, daemon=True)
    was_requested, give_up_s = interrupt.requested, float("inf")
    try:
        thread.start()
    except RuntimeError:  # EAGAIN: a limit of threads or of memory is reached
        run()
    while thread.is_alive() and time.monotonic() < give_up_s:
        thread.join(_POLL_S)
        if interrupt.requested and not was_requested:
            was_requested, give_up_s = True, time.monotonic() + _PATIENCE_S
    if results:
        return results[0]
    why = f"failed: {failures[0]!r}" if failures else "took too long, and was ended by a signal"
    namer.give_up(f"the look-up of names {why}")
    return work()
