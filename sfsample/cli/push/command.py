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
from select import select

from sfsample.cli.push.backend import check_credentials
from sfsample.cli.push.pusher import Pusher
from sfsample.cli.terminal import say
from sfsample.history.store import History

_LOOK_S = 60.0  # between two looks for new slices, where no byte says that there is one
_NICE = 19


def push(history: History, arguments: Namespace) -> int:
    """Do it; return the exit code."""
    pushers = [
        Pusher(history, backend, arguments.service, arguments.push_auth_file) for backend in arguments.push
    ]
    if not arguments.follow:
        check_credentials(arguments)
        return max([_push_all(pusher) for pusher in pushers])
    os.nice(_NICE)
    _follow(pushers)
    return 0


def _push_all(pusher: Pusher) -> int:
    """Send what there is; say what became of it."""
    mark = pusher.mark
    sent, dropped = mark.sent, mark.dropped.copy()
    pusher.push()
    left = sum(1 for _ in pusher.unsent())
    lost = [f", {count} dropped ({why})" for why, count in sorted((mark.dropped - dropped).items())]
    say(f"{pusher.backend.text}: {mark.sent - sent} slices sent{''.join(lost)}, {left} left")
    return 1 if lost or left else 0


def _follow(pushers: list[Pusher]) -> None:
    """Send slices as they come, until stdin ends, and then the last ones; what is no pipe does not end."""
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
