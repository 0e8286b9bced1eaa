"""Starts threads all the time while it runs itself, and is sampled before a new one has begun."""

import _thread
import json
import time


def work() -> None:
    """Run for some samples."""
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        sum(range(100))


def start() -> None:
    """Start a thread, and go on."""
    _thread.start_new_thread(work, ())
    end = time.monotonic() + 0.02
    while time.monotonic() < end:
        sum(range(100))


print(json.dumps("started"), flush=True)
while True:
    start()
