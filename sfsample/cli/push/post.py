"""Sends one request, in bounded time, and reads a bounded answer; redirects are not followed."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from sfsample import __version__
from sfsample.cli.push.backend import Backend

_MAX_ANSWER = 64 << 10  # bytes
_CONNECT_S = 10.0
_TOTAL_S = 30.0  # to connect, send, and read the answer
_MAX_RETRY_AFTER_S = 600.0
_MAX_SHOWN = 200  # characters of a refusal
FAILURES = (OSError, HTTPException, ValueError)  # http.client raises ValueError at some garbage


class Answer(NamedTuple):
    """What a backend answers; the body is cut."""

    status: int
    retry_after: str
    body: bytes

    def wait_s(self, now_s: float) -> float:
        """Return for how long it asks not to be asked (RFC 9110, 10.2.3); 0: it does not say."""
        with suppress(ValueError, OverflowError):
            text = self.retry_after.strip()
            wait_s = int(text) if text.isdecimal() else parsedate_to_datetime(text).timestamp() - now_s
            return min(max(0.0, wait_s), _MAX_RETRY_AFTER_S)
        return 0.0

    def why(self, headers: dict[str, str]) -> str:
        """Return the begin of the body, without what came out of the file of credentials."""
        text = self.body.decode("utf-8", "replace")
        for secret in sorted(
            (word for value in headers.values() for word in value.split()), key=len, reverse=True
        ):
            text = text.replace(secret, "***")
        return " ".join(text.split())[:_MAX_SHOWN]


def post(backend: Backend, body: bytes, headers: dict[str, str], limit_s: float) -> Answer:
    """Return the answer.  Raises one of FAILURES."""
    connection_class = HTTPSConnection if backend.is_tls else HTTPConnection
    connection = connection_class(backend.host, backend.port, timeout=_CONNECT_S)
    try:
        with _within(min(limit_s, _TOTAL_S)):
            agent = {"User-Agent": f"sfsample/{__version__}"}
            connection.request("POST", backend.path, body, {**agent, **headers})
            answer, data = connection.getresponse(), b""
            with suppress(*FAILURES):  # the status says what became of the slice
                data = answer.read(_MAX_ANSWER)
            return Answer(answer.status, answer.getheader("Retry-After", ""), data)
    finally:
        connection.close()


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block when so much time has passed; the process has one thread."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
