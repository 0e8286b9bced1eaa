"""Answers the HTTP requests of `sfsample watch --listen`, and refuses requests that no profiler sends.

The size of a request head and the time for its arrival are bounded.  A web page must not reach this port
through the user's browser, so `Origin` and `Sec-Fetch-Site` must not name another site.  An attacker's DNS
server can map the attacker's name to this address, so `Host` must be an allowed name.  A connection gets one
answer.

A server thread that computes holds the GIL, which would lengthen a pause of the target.  So server threads
compute only while no target thread is held (SUSPEND_LOCK).  They wait and send at any time.

--max-overhead does not limit the cost of answers.  If answers have taken more than 10 % of a CPU, the server
accepts no connection for a while.  So a flood of requests does not stop the sampling.
"""

import hmac
import logging
import os
import re
import select
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from shlex import quote
from socketserver import TCPServer, ThreadingMixIn
from typing import NamedTuple
from urllib.parse import parse_qsl

from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.core.printable import printable
from sfsample.errors import NoThread, SfsampleError
from sfsample.recording.options import Mode
from sfsample.recording.ticks import OverheadLimit
from sfsample.watching.options import Listen, read_secret
from sfsample.watching.pull.door import Door, Wanted

_TOKEN = re.compile(rb"[!-~]{16,}")
_MAX_HEAD = 8192  # bytes of the request line and all headers
_HEAD_S = 5.0  # time in which the head must arrive
_SEND_S = 10.0  # time in which a client must take an answer
_MAX_CONNECTIONS = 32
_MAX_SHARE = 0.1  # share of a CPU for answers; above this share, new connections wait in the kernel
_POLL_S = 0.1  # time between two checks for new clients and for clients that have gone
_MAX_HOLD_S = 1.0  # longest time that an answer waits for the release of target threads
_MAX_SECONDS, _USUAL_SECONDS, _MAX_RATE_HZ = 120, "30", 1000  # 30 s as in Go's net/http/pprof
_MODES: dict[str, Mode] = {"cpu": "cpu", "wall": "wall"}
_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_ALWAYS = (("Cache-Control", "no-store"), ("Connection", "close"), ("X-Content-Type-Options", "nosniff"))
_log = logging.getLogger("sfsample.watching")


class Answer(NamedTuple):
    """The status, the body and the headers of an answer."""

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...]


class Refusal(Exception):  # noqa: N818 - reads as what happened
    """A refusal of a request; `answer` has the reason."""

    def __init__(self, status: int, why: str, *headers: tuple[str, str]) -> None:
        super().__init__(why)
        self.answer = _line(status, why, *headers)


class Server(ThreadingMixIn, TCPServer):
    """A server: one thread accepts all connections, and each connection has its own thread.

    `free` counts the connections that may still begin.  `server_close` waits for the open connections, which
    have time limits of seconds.  If there is a `token`, each request needs it.  The `Host` of a request must
    be the address or a name in `hosts`.
    """

    allow_reuse_address = True
    request_queue_size = 64

    def __init__(
        self, where: str | tuple[str, int], door: Door, token: bytes | None, hosts: Iterable[str]
    ) -> None:
        if isinstance(where, str):
            self.address_family = socket.AF_UNIX
        elif ":" in where[0]:
            self.address_family = socket.AF_INET6
        self.door, self.token, self.hosts = door, token, [name.lower() for name in hosts]
        self.free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._limit = OverheadLimit(_MAX_SHARE, time.monotonic(), 0.0)
        super().__init__(where, _Handler)  # type: ignore[arg-type]  # typeshed knows no AF_UNIX here

    def service_actions(self) -> None:
        """Wait before the next connection while answers have taken more than their share of a CPU."""
        self.door.served_s = self.door.answering_s + time.thread_time()
        until_s = self._limit.resume_at(time.monotonic(), self.door.served_s)
        while (wait_s := until_s - time.monotonic()) > 0 and not self.door.has_ended:
            time.sleep(min(wait_s, _POLL_S))

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002 - socketserver's
        """Log a failure; neither the client nor the terminal gets a traceback."""
        _log.debug("answering a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def handle(self) -> None:
        """Answer a request; give up a client that is slow, or does not take the answer."""
        with suppress(OSError):
            if not self.server.free.acquire(blocking=False):
                self._send(_line(503, "too many connections", ("Retry-After", "1")))
                return
            try:
                self._serve()
            finally:
                self.server.free.release()
        self.server.door.answering_s += time.thread_time()

    def _serve(self) -> None:
        try:
            result = self._answer_between_stops(self._read_head())
            answer = self._wait_for(result) if isinstance(result, Wanted) else result
        except Refusal as refusal:
            answer = refusal.answer
        if answer is not None:
            self._send(answer)

    def _read_head(self) -> bytes:
        """Return the request line and the headers.  Raises OSError if the client sends them too slowly."""
        until_s, data = time.monotonic() + _HEAD_S, b""
        while b"\r\n\r\n" not in data:
            if len(data) == _MAX_HEAD:
                raise Refusal(431, "the request is too large")
            self.connection.settimeout(max(0.0, until_s - time.monotonic()))
            part = self.connection.recv(_MAX_HEAD - len(data))
            if not part:
                raise ConnectionAbortedError
            data += part
        return data

    def _answer_between_stops(self, head: bytes) -> Answer | Wanted:
        """Compute an answer while no target thread is held; meanwhile, the sampler stops no thread."""
        is_locked = SUSPEND_LOCK.acquire(timeout=_MAX_HOLD_S)
        try:
            return self._answer(head)
        except Exception as failure:  # noqa: BLE001 - after any failure, the client gets a line of text
            _log.debug("answering a request failed", exc_info=True)
            raise failure if isinstance(failure, Refusal) else Refusal(500, "the answer failed") from None
        finally:
            if is_locked:
                SUSPEND_LOCK.release()

    def _answer(self, head: bytes) -> Answer | Wanted:
        self.rfile = BytesIO(head)
        self.raw_requestline = self.rfile.readline()
        if not self.parse_request() or self.headers.defects:  # a defect can hide the headers after it
            raise Refusal(400, "the request is malformed")
        self._check()
        path, _, query = self.path.partition("?")
        match path:
            case "/debug/pprof/profile":
                wanted = _wanted(query)
                if busy_s := self.server.door.ask(wanted):
                    raise Refusal(503, "another profile is being recorded", ("Retry-After", str(busy_s)))
                return wanted
            case "/metrics":
                kind = ("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                return Answer(200, self.server.door.metrics().encode(), (kind,))
            case "/healthz":
                why = self.server.door.why_unhealthy()
                return _line(503 if why else 200, why or "ok")
        raise Refusal(404, "there are /debug/pprof/profile?seconds=N, /metrics and /healthz")

    def _check(self) -> None:
        """Refuse methods except GET, browsers that act for another site, and clients without the token."""
        if self.command != "GET":
            raise Refusal(405, "only GET", ("Allow", "GET"))
        self._check_host()
        site = self.headers.get("Sec-Fetch-Site", "none")
        if "Origin" in self.headers or site not in ("none", "same-origin"):
            raise Refusal(403, "requests of web pages are refused")
        if (token := self.server.token) is not None:
            given = self.headers.get("Authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, b"Bearer " + token):
                raise Refusal(401, "this needs Authorization: Bearer TOKEN", ("WWW-Authenticate", "Bearer"))

    def _check_host(self) -> None:
        if self.server.address_family == socket.AF_UNIX:  # no browser can connect
            return
        address = self.connection.getsockname()[0]
        itself = f"[{address}]" if ":" in address else address
        names = [re.sub(r":\d+$", "", name.lower()) for name in self.headers.get_all("Host", ())]
        if len(names) != 1 or names[0] not in (*_LOOPBACK, itself, *self.server.hosts):
            raise Refusal(403, "this Host is not allowed; sfsample watch --listen-host NAME allows it")

    def _wait_for(self, wanted: Wanted) -> Answer | None:
        """Return the profile; None: the client has gone, or has closed its side, which ends the recording."""
        poller = select.poll()
        poller.register(self.connection, select.POLLRDHUP)
        while not wanted.ended.wait(_POLL_S):
            if poller.poll(0):
                wanted.gone = True
                return None
            if self.server.door.has_ended:
                break
        if not wanted.data:
            return _line(503, wanted.failure or "sfsample ends")
        return Answer(200, wanted.data, (("Content-Type", "application/octet-stream"),))

    def _send(self, answer: Answer) -> None:
        self.server.door.count("http_responses_total", f'{{code="{answer.status}"}}')
        self.request_version = "HTTP/1.0"  # http.server sends no head to a client of HTTP/0.9
        self.connection.settimeout(_SEND_S)
        self.send_response_only(answer.status)
        for name, value in (*answer.headers, *_ALWAYS, ("Content-Length", str(len(answer.body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002
        """Refuse a request, without the text of http.server, because that text quotes the request."""
        raise Refusal(code, HTTPStatus(code).phrase)


def _line(status: int, text: str, *headers: tuple[str, str]) -> Answer:
    data = f"{printable(text)}\n".encode()
    return Answer(status, data, (("Content-Type", "text/plain; charset=utf-8"), *headers))


def _wanted(query: str) -> Wanted:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    if not parameters.keys() <= {"seconds", "mode", "rate"}:
        raise Refusal(400, "parameters are seconds, mode and rate; the watch chooses the targets")
    seconds = parameters.get("seconds", _USUAL_SECONDS)
    mode, rate = parameters.get("mode"), parameters.get("rate")
    if not re.fullmatch("[0-9]{1,3}", seconds) or not 1 <= int(seconds) <= _MAX_SECONDS:
        raise Refusal(400, f"seconds is a whole number from 1 to {_MAX_SECONDS}")
    if mode is not None and mode not in _MODES:
        raise Refusal(400, "mode is cpu or wall")
    if rate is not None and not (_NUMBER.fullmatch(rate) and 0.1 <= float(rate) <= _MAX_RATE_HZ):
        raise Refusal(400, f"rate is a number from 0.1 to {_MAX_RATE_HZ}, samples per second")
    return Wanted(int(seconds), _MODES.get(mode or ""), None if rate is None else float(rate))


@contextmanager
def listening(where: str | tuple[str, int], how: Listen, door: Door) -> Iterator[str]:
    """Answer requests until the context ends; yield the address."""
    token = None if how.token_file is None else _token(how.token_file)
    try:
        with _free(where) if isinstance(where, str) else nullcontext():
            server = Server(where, door, token, how.hosts)
    except OSError as failure:
        name = f"unix:{where}" if isinstance(where, str) else ":".join(map(str, where))
        raise SfsampleError(f"cannot listen: {name}: {failure.strerror or failure}",
                            "choose another address or path after --listen") from None  # fmt: skip
    # block signals: a signal in a thread of the server would not wake the main thread or the tracing thread
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        threading.Thread(target=server.serve_forever, args=(_POLL_S,), daemon=True).start()
    except RuntimeError:
        server.socket.close()
        raise NoThread from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        yield _shown(server)
    finally:
        door.has_ended = True
        server.shutdown()
        with suppress(RuntimeError):  # the thread of a connection was not started
            server.server_close()
        if isinstance(where, str):
            with suppress(OSError):
                os.unlink(where)


@contextmanager
def _free(path: str) -> Iterator[None]:
    """Make new sockets private to this user; first remove an old socket on which no program listens."""
    with suppress(FileNotFoundError):
        old = os.lstat(path)
        with socket.socket(socket.AF_UNIX) as probe:
            is_mine = stat.S_ISSOCK(old.st_mode) and old.st_uid == os.geteuid()
            if is_mine and probe.connect_ex(path):
                os.unlink(path)
    umask = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(umask)


def _shown(server: Server) -> str:
    address = server.socket.getsockname()
    if isinstance(address, str):
        return f"unix:{address}"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    return f"http://{host}:{address[1]}"


def _token(path: str) -> bytes:
    token = read_secret(path).strip()
    if not _TOKEN.fullmatch(token):
        raise SfsampleError(f"no token of at least 16 letters, digits or signs: {path}",
                            f"make a token: (umask 077; openssl rand -hex 32 > {quote(path)})")  # fmt: skip
    return token
