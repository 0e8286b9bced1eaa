"""Sends one request in bounded time, reads an answer of bounded size, and follows no redirect."""

import signal
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import NamedTuple

from sfsample import __version__
from sfsample.core.foreign import http_date, natural
from sfsample.watching.push.backend import Backend

_MAX_ANSWER = 64 << 10  # bytes
_TOTAL_S = 30.0  # time to connect, send, and read the answer
_MAX_WAIT_S = 3600.0
_MAX_SHOWN = 200  # characters of a refusal


class StoreAnswer(NamedTuple):
    """The status, the begin of a refusal, and the seconds for which the backend takes no request."""

    status: int
    refusal: bytes
    wait_s: float


def post(backend: Backend, body: bytes, headers: dict[str, str]) -> StoreAnswer:
    """Send a request; only the main thread can do it.  Raises OSError."""
    connection = (HTTPSConnection if backend.is_tls else HTTPConnection)(backend.host, backend.port)
    signal.signal(signal.SIGALRM, _expire)
    signal.setitimer(signal.ITIMER_REAL, _TOTAL_S)
    try:
        connection.request("POST", backend.path, body, {"User-Agent": f"sfsample/{__version__}", **headers})
        answer = connection.getresponse()
        refusal = answer.read(_MAX_ANSWER) if answer.status >= 300 else b""
    except (HTTPException, ValueError) as failure:  # some garbage makes http.client raise it
        raise OSError(str(failure) or type(failure).__name__) from None
    else:
        return StoreAnswer(answer.status, refusal, _wait_s(answer.headers.get("Retry-After", "")))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        connection.close()


def _wait_s(text: str) -> float:
    """Return the seconds of Retry-After, which is a number or a date (RFC 9110, 10.2.3)."""
    asked_s = natural(text)
    wait_s = (http_date(text) or 0.0) - time.time() if asked_s is None else asked_s
    return min(max(0.0, wait_s), _MAX_WAIT_S)


def without_secrets(refusal: bytes, headers: dict[str, str]) -> str:
    """Return the begin of a refusal, without the credentials that it may quote."""
    text = refusal.decode("utf-8", "replace")
    for secret in sorted(" ".join(headers.values()).split(), key=len, reverse=True):
        text = text.replace(secret, "***")
    return " ".join(text.split())[:_MAX_SHOWN]


def _expire(*_: object) -> None:
    raise TimeoutError(f"it took longer than {_TOTAL_S:.0f} s")
