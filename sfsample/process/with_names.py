"""Looks up names in such a way that no failure loses the result, and that signals still arrive.

A file of the target may be in a file system that does not answer (FUSE, NFS).  The main thread handles a
signal only when its system call returns.  So another thread looks up names.
"""

import logging
import time
from collections.abc import Callable
from math import inf
from typing import Protocol, TypeVar

from sfsample.errors import NoReturn, NoThread
from sfsample.process.tracer_thread import TracerThread

_T = TypeVar("_T")
_log = logging.getLogger("sfsample.symbolize")


class Namer(Protocol):
    """A symbolizer that can be stopped."""

    def give_up(self, why: str) -> None:
        """Look up no name from now on."""


def with_names(
    work: Callable[[], _T], namer: Namer, should_stop: Callable[[], bool], until_s: float = inf
) -> _T:
    """Return the result of `work`, which looks up names with `namer`.

    `work` must end soon after a first signal, and soon after `until_s` (time.monotonic).  If it does not, or
    if it fails or is stuck, it is done again without further look-ups.  If no thread can start, the calling
    thread does `work`.
    """
    was_requested = should_stop()

    def should_end() -> bool:
        return (should_stop() and not was_requested) or time.monotonic() > until_s

    try:
        try:
            return TracerThread(lambda _: work(), should_end, lambda _: True).run()
        except NoThread:
            return work()
    except NoReturn:
        why = "took too long" + (", and was ended by a signal" if should_stop() else "")
    except Exception as failure:  # noqa: BLE001 - it costs names, not the result
        _log.debug("looking up names failed", exc_info=True)
        why = f"failed: {failure!r}"
    namer.give_up(f"the look-up of names {why}")
    return work()
