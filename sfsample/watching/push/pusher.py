"""Sends the slices of a history to one backend, the oldest first.

A slice that cannot be sent now waits in the history.  A slice that the backend refuses is counted as dropped.
If the process is killed after the answer, but before it writes the mark, the slice is sent twice, with the
same id.

Invariant: each slice that is not merged yet is sent, or counted as dropped, whatever the backend does
(tests/watching/push/test_push.py).
"""

import os
import random
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from select import select

from sfsample import __version__
from sfsample.core.foreign import natural
from sfsample.errors import BadInput, SfsampleError
from sfsample.history.facts import SliceFacts
from sfsample.history.files import HistoryFile
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.report.formats import check_numbers
from sfsample.watching.program import Say, Trouble
from sfsample.watching.push.backend import Backend, Mark, headers_for
from sfsample.watching.push.encode import encode

_LOOK_S = 60.0  # time between two searches for new slices, if no byte announces a slice
_LATER = (429, 502, 503, 504)  # status codes after which the slice is sent later
_MAX_PAUSE_S = 300.0
_MAX_RETRIES = 9  # retries after status 500 or higher, which the slice itself may cause
_MAX_ANSWER = 64 << 10  # bytes
_TOTAL_S = 30.0  # time in which to connect, to send, and to read the answer
_MAX_WAIT_S = 3600.0
_MAX_SHOWN = 200  # characters of a refusal


class Pusher:
    """Pushes to one backend; `due_s` is the time of the next attempt after a failure (CLOCK_MONOTONIC)."""

    def __init__(self, history: History, backend: Backend, auth_file: str | None, say: Say) -> None:
        self._history, self.backend, self._auth_file, self._say = history, backend, auth_file, say
        self.mark = Mark(history.directory, backend.text)
        self.due_s = 0.0
        self._tries = 0  # attempts in a row that failed
        self._wait_s = 0.0  # Retry-After of the last answer, in seconds
        self._late = Trouble(say, "slices wait in the history, for two days", once=True)
        self._refused = Trouble(say, "the slice is counted as dropped", once=True)

    def push(self) -> bool:
        """Send the slices; if a slice cannot be sent now, print the reason and return False."""
        self._wait_s = 0.0
        try:
            headers = headers_for(self.backend, self._auth_file)
            with self.mark.locked():
                for file, facts in self.unsent():
                    self._send(file, facts, headers)
                    self.mark.done[str(file.identity)] = facts.number
                    self.mark.save()
                    self._succeeded()
        except Exception as failure:  # noqa: BLE001 - after any failure, other backends get their slices
            self._failed(failure)
            return False
        self._succeeded()
        return True

    def _succeeded(self) -> None:
        self._tries, self.due_s = 0, 0.0
        if failed := self._late.over():
            self._say(f"pushed again to {self.backend.text}, after {failed} failed attempts")

    def _failed(self, failure: Exception) -> None:
        """Print the failure, and choose a longer pause, at random, so that senders do not retry together."""
        self._tries += 1
        pause_s = min(_MAX_PAUSE_S, 2.0**self._tries) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self.due_s = time.monotonic() + max(pause_s, self._wait_s)
        why = getattr(failure, "strerror", None) or str(failure) or repr(failure)
        self._late.met(f"cannot push to {self.backend.text}: {why}", *getattr(failure, "help", ()))

    def unsent(self) -> Iterator[tuple[HistoryFile, SliceFacts]]:
        """Yield the unsent slices, each with its file."""
        for name in file_names(self._history.directory):
            with self._history.skipping(name.path), closing(HistoryFile(name.path)) as file:
                last = self.mark.done.get(str(file.identity), 0)
                yield from ((file, facts) for facts in list(file.facts(last + 1)) if facts.tier == "1m")

    def _send(self, file: HistoryFile, facts: SliceFacts, headers: dict[str, str]) -> None:
        """Send a slice, or drop it.  Raises SfsampleError or OSError if the slice must wait."""
        try:
            report = file.report([facts])
            check_numbers(report)
            body, own = encode(self.backend.kind, facts, report, f"{file.identity}.{facts.id}")
        except BadInput as failure:
            self._drop("damaged", str(failure))
            return
        status, refusal, self._wait_s = post(self.backend, body, headers | own)
        why = [*filter(None, [without_secrets(refusal, headers)])]
        is_redirect = status < 200 or 300 <= status < 400  # the slice waits, as the user can correct the URL
        may_be_cured = status >= 500 and self._tries < _MAX_RETRIES
        if is_redirect or may_be_cured or status in _LATER:
            raise SfsampleError(f"status {status}", *why)
        if status >= 300:
            self._drop(f"status {status}", *why)
            return
        self.mark.sent += 1
        self.mark.until_s = max(self.mark.until_s, facts.end_s)

    def _drop(self, reason: str, *why: str) -> None:
        self.mark.dropped[reason] += 1
        self._refused.met(f"{self.backend.text} does not take a slice: {reason}", *why)


def follow(pushers: list[Pusher]) -> None:
    """Send new slices until stdin ends; then send the last slices.

    The child of a watch calls this function.  In `watch` itself, encoding would hold the GIL while `watch`
    holds a thread of the target.  The stdin of the child is a pipe from `watch`, which always ends with
    `watch`.  If stdin is no pipe, its end is ignored.
    """
    pipe = [0] if stat.S_ISFIFO(os.fstat(0).st_mode) else []
    if pipe:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # systemd sends SIGTERM to watch and to this process
    has_ended = False
    while not has_ended:
        for pusher in pushers:
            if pusher.due_s <= time.monotonic():
                pusher.push()
        due_s = [pusher.due_s - time.monotonic() for pusher in pushers if pusher.due_s]
        readable, *_ = select(pipe, [], [], max(0.0, min([_LOOK_S, *due_s])))
        has_ended = bool(readable) and not os.read(0, 1 << 16)  # a byte announces a slice
    for pusher in pushers:
        pusher.push()


def post(backend: Backend, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, float]:
    """Send a request in bounded time; follow no redirect.  Only for the main thread.  Raises OSError.

    Returns the status, the first bytes of a refusal, and the seconds of Retry-After.
    """
    connection = (HTTPSConnection if backend.is_tls else HTTPConnection)(backend.host, backend.port)
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, _TOTAL_S)
    try:
        connection.request("POST", backend.path, body, {"User-Agent": f"sfsample/{__version__}", **headers})
        answer = connection.getresponse()
        refusal = answer.read(_MAX_ANSWER) if answer.status >= 300 else b""
    except (HTTPException, ValueError) as failure:  # http.client raises ValueError for some bad answers
        raise OSError(str(failure) or type(failure).__name__) from None
    else:
        wait_s = natural(answer.headers.get("Retry-After", "")) or 0
        return answer.status, refusal, min(wait_s, _MAX_WAIT_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.close()


def without_secrets(refusal: bytes, headers: dict[str, str]) -> str:
    """Return the first characters of a refusal, with credentials replaced by ***."""
    text = refusal.decode("utf-8", "replace")
    for secret in sorted(" ".join(headers.values()).split(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(text.split())[:_MAX_SHOWN]


def _expire(*_: object) -> None:
    raise TimeoutError(f"the request took longer than {_TOTAL_S:.0f} s")
