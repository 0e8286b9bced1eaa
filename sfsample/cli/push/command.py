"""`sfsample history push`: sends what backends have not taken yet; `watch --push` runs it with --follow.

It is a process of its own, because to encode a slice and to wait for a backend would hold the interpreter
while `watch` holds a thread of its target.  With --follow its end is that of the pipe that is its stdin, so
that it goes on for a moment after `watch`, whatever ends that: for the last slice.
"""

import os
import signal
import stat
import time
from argparse import Namespace
from math import inf
from select import select

from sfsample.cli.push.backend import check_credentials
from sfsample.cli.push.pusher import Pusher
from sfsample.cli.terminal import say
from sfsample.errors import SfsampleError
from sfsample.history.store import History

END_S = 8.0  # for what is left, when `watch` has ended
_LOOK_S = 60.0  # between two looks for new slices, where no byte says that there is one
_TRIES = 4  # for a backend, without --follow
_NICE = 19


def push(history: History, arguments: Namespace) -> int:
    """Do it; return the exit code."""
    pushers = [
        Pusher(history, backend, arguments.service, arguments.push_auth_file) for backend in arguments.push
    ]
    try:
        if not arguments.follow:
            check_credentials(arguments)
            return max([_push_all(pusher) for pusher in pushers])
        os.nice(_NICE)
        _follow(pushers)
    finally:
        for pusher in pushers:
            pusher.close()
    return 0


def _push_all(pusher: Pusher) -> int:
    """Send what there is, in a few attempts; say what became of it."""
    if not pusher.lock():
        raise SfsampleError(f"another process pushes this history to {pusher.backend.text}",
                            "`sfsample watch --push` does, until it ends")  # fmt: skip
    mark = pusher.mark
    sent, dropped = mark.sent, mark.dropped.copy()
    for _ in range(_TRIES):
        time.sleep(max(0.0, pusher.due_s - time.monotonic()))
        if pusher.push(lambda: inf):
            break
    lost = [f", {count} dropped ({why})" for why, count in sorted((mark.dropped - dropped).items())]
    say(f"{pusher.backend.text}: {mark.sent - sent} slices sent{''.join(lost)}, {pusher.left} left")
    return 1 if lost or pusher.left else 0


def _follow(pushers: list[Pusher]) -> None:
    """Send slices as they come, until stdin ends."""
    parent = _Parent()
    while not parent.has_ended:
        for pusher in pushers:
            if pusher.due_s <= time.monotonic():
                pusher.push(parent.left_s)
        parent.wait(min([_LOOK_S, *(pusher.due_s - time.monotonic() for pusher in pushers if pusher.due_s)]))
    for pusher in pushers:
        pusher.push(parent.left_s)


class _Parent:
    """Watches stdin: a byte is a new slice, the end that of the parent.  Without a pipe there is none."""

    def __init__(self) -> None:
        self._pipe = [0] if stat.S_ISFIFO(os.fstat(0).st_mode) else []
        self._until_s = inf
        if self._pipe:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd sends it to both at once

    @property
    def has_ended(self) -> bool:
        return self._until_s < inf

    def wait(self, seconds: float) -> None:
        """Wait for a byte, or for the end; do not wait behind that."""
        seconds = 0.0 if self.has_ended else seconds
        if select(self._pipe, [], [], max(0.0, seconds))[0] and not os.read(0, 1 << 16):
            self._pipe, self._until_s = [], time.monotonic() + END_S

    def left_s(self) -> float:
        """Return how much time is left."""
        self.wait(0)
        return self._until_s - time.monotonic()
