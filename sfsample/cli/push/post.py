"""Sends one request, in bounded time, and reads a bounded answer; redirects are not followed."""

import signal
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from sfsample import __version__
from sfsample.cli.push.backend import Backend

_MAX_ANSWER = 64 << 10  # bytes
_TOTAL_S = 30.0  # to connect, send, and read the answer
_MAX_SHOWN = 200  # characters of a refusal


class Answer(NamedTuple):
    """What a backend answers; `body` is the begin of a refusal."""

    status: int
    body: bytes

    def why(self, headers: dict[str, str]) -> str:
        """Return the begin of the body, without what came out of the file of credentials."""
        text = self.body.decode("utf-8", "replace")
        for secret in sorted(" ".join(headers.values()).split(), key=len, reverse=True):
            text = text.replace(secret, "***")
        return " ".join(text.split())[:_MAX_SHOWN]


def post(backend: Backend, body: bytes, headers: dict[str, str]) -> Answer:
    """Return the answer; only the main thread can wait for it.  Raises OSError."""
    connection = (HTTPSConnection if backend.is_tls else HTTPConnection)(backend.host, backend.port)
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, _TOTAL_S)
    try:
        connection.request("POST", backend.path, body, {"User-Agent": f"sfsample/{__version__}", **headers})
        answer = connection.getresponse()
        refusal = answer.read(_MAX_ANSWER) if answer.status >= 300 else b""
        return Answer(answer.status, refusal)
    except (HTTPException, ValueError) as failure:  # http.client raises ValueError at some garbage
        raise OSError(str(failure) or type(failure).__name__) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.close()


def _expire(*_: object) -> None:
    raise TimeoutError(f"it took longer than {_TOTAL_S:.0f} s")
