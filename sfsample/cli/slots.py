"""The schedule of `watch`: slot k begins at start + k * every, however long a slice takes.

A slot that has passed is skipped.
"""

import time
from collections.abc import Callable, Iterator

_MAX_SLEEP_S = 0.2  # then it asks again whether to stop


def slots(
    every_s: float, should_stop: Callable[[], bool], between: Callable[[], bool] = lambda: False
) -> Iterator[float]:
    """Wait for slot after slot; yield how many seconds are left of it.

    `between` is called while it waits, and returns whether it did something.

    A slot that is less than half over is begun late (one slice follows another without a gap when --for
    equals --every); one that is more than half over is missed.
    """
    start, slot = time.monotonic(), 0
    while True:
        if not wait_until(start + slot * every_s, should_stop, between):
            return
        if (current := round((time.monotonic() - start) / every_s)) > slot:  # `between` took long
            slot = current
            continue
        yield start + (slot + 1) * every_s - time.monotonic()
        slot = max(slot + 1, round((time.monotonic() - start) / every_s))


def wait_until(
    at_s: float, should_stop: Callable[[], bool], between: Callable[[], bool] = lambda: False
) -> bool:
    """Wait, and call `between` meanwhile; False when a stop was requested."""
    while not should_stop() and (wait_s := at_s - time.monotonic()) > 0:
        if not between():
            time.sleep(min(wait_s, _MAX_SLEEP_S))
    return not should_stop()
