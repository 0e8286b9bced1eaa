"""Sends slices as they come, in the child of `watch --push`: `sfsample history push --follow`.

It is a process of its own, because to encode a slice and to wait for a backend would hold the interpreter
while `watch` holds a thread of its target.  Its end is that of the pipe that is its stdin, so
that it goes on for a moment after `watch`, whatever ends that: for the last slice.
"""

import os
import signal
import stat
import time
from select import select

from sfsample.watching.push.pusher import Pusher

_LOOK_S = 60.0  # between two looks for new slices, where no byte says that there is one
_NICE = 19


def follow(pushers: list[Pusher]) -> None:
    """Send slices as they come, until stdin ends, and then the last ones; what is no pipe does not end."""
    os.nice(_NICE)
    pipe = [0] if stat.S_ISFIFO(os.fstat(0).st_mode) else []
    if pipe:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd sends it to `watch` and to this at once
    has_ended = False
    while not has_ended:
        for pusher in pushers:
            if pusher.due_s <= time.monotonic():
                pusher.push()
        due_s = [pusher.due_s - time.monotonic() for pusher in pushers if pusher.due_s]
        has_ended = _wait(pipe, min([_LOOK_S, *due_s]))
    for pusher in pushers:
        pusher.push()


def _wait(pipe: list[int], seconds: float) -> bool:
    """Wait for a byte, which says that there is a slice; return whether the pipe has ended."""
    return bool(select(pipe, [], [], max(0.0, seconds))[0]) and not os.read(0, 1 << 16)
