"""The rules of the pull door, one by one; no target is needed."""

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.errors import NoSuchProcess, NoThread, SfsampleError
from sfsample.watching.pull import server
from sfsample.watching.pull.door import Door, Wanted
from tests.watching.pull.http_client import connected, get, looping, read, request, send, serving

PROFILE = "/debug/pprof/profile"
TOKEN = "0123456789abcdef-secret"  # noqa: S105 - of this test only


@pytest.fixture
def door() -> Door:
    return Door(60, 10)


@pytest.fixture
def where(door: Door) -> Iterator[str]:
    with serving(door) as at:
        yield at


def refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_door_that_no_thread_can_serve_is_one_error(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(NoThread, match="cannot start a thread"), serving(door):
        pytest.fail("it is open")


def test_client_without_a_thread_is_left_and_the_door_goes_on(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(door) as at:
        for last in (False, True):
            with monkeypatch.context() as limited:
                limited.setattr(threading.Thread, "start", refuse)
                with connected(at) as client, suppress(ConnectionResetError):
                    assert client.recv(100) == b""
            assert last or get(at, "/healthz").status == 200


def encoded(wanted: Wanted) -> bytes:
    return repr((wanted.seconds, wanted.mode, wanted.rate)).encode()


def test_profile_is_what_the_loop_records(door: Door, where: str) -> None:
    with looping(door, encoded):
        reply = get(where, f"{PROFILE}?seconds=7&mode=wall&rate=12.5")
        assert (reply.status, reply.body) == (200, b"(7, 'wall', 12.5)")
        assert reply.headers["content-type"] == "application/octet-stream"
        assert reply.headers["content-length"] == str(len(reply.body))
        assert get(where, PROFILE).body == b"(30, None, None)"


@pytest.mark.parametrize(
    "query",
    ["seconds=0", "seconds=121", "seconds=-1", "seconds=1.5", "seconds=", "seconds=1e2", "seconds=nan",
     "seconds=\u0661", "seconds=9999999999", "mode=both", "mode=", "rate=0",
     "rate=1001", "rate=inf", "rate=-5", "rate=1_0", "pid=1", "seconds=1&pid=1", "name=x", "x",
     "seconds", "&".join(f"a{n}=1" for n in range(50))],
)  # fmt: skip
def test_other_parameters_are_refused(door: Door, where: str, query: str) -> None:
    reply = get(where, f"{PROFILE}?{query}")
    assert reply.status == 400
    assert reply.body.count(b"\n") == 1
    assert not door.is_due()


def test_second_profile_is_to_come_back_later(door: Door, where: str) -> None:
    with ThreadPoolExecutor() as pool:
        first = pool.submit(get, where, f"{PROFILE}?seconds=20")
        while not door.is_due():
            time.sleep(0.001)
        second = get(where, f"{PROFILE}?seconds=1")
        assert second.status == 503
        assert second.headers["retry-after"] == "20"
        assert door.serve(encoded)
        assert first.result().body == b"(20, None, None)"


def test_failure_is_one_line(door: Door, where: str) -> None:
    def fail(_: Wanted) -> bytes:
        raise NoSuchProcess(0, "no such process: x\x1b[31m\ny\udcff", "help")

    with looping(door, fail):
        reply = get(where, PROFILE)
    assert (reply.status, reply.body) == (503, b"no such process: x?[31m?y?\n")


@pytest.mark.parametrize("close", [socket.socket.close, lambda client: client.shutdown(socket.SHUT_WR)])
def test_client_that_leaves_ends_its_recording(door: Door, where: str, close: object) -> None:
    left = threading.Event()

    def until_gone(wanted: Wanted) -> bytes:
        while not wanted.gone:
            time.sleep(0.001)
        left.set()
        return b""

    with looping(door, until_gone), connected(where) as client:
        client.sendall(request(f"{PROFILE}?seconds=120") + b"more")
        while not door.is_due():
            time.sleep(0.001)
        close(client)  # type: ignore[operator]
        left.wait()
        while door.is_due():
            time.sleep(0.001)


def test_metrics_are_text_of_prometheus(where: str) -> None:
    reply = get(where, "/metrics")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert get(where, "/metrics").body.count(b'sfsample_http_responses_total{code="200"} 1') == 1


@pytest.mark.parametrize(
    "method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "GETX"]
)
def test_other_methods_are_refused(where: str, method: str) -> None:
    reply = send(where, request("/metrics", method=method))
    assert (reply.status, reply.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("LOCALHOST:1", 200), ("127.0.0.1", 200), ("[::1]:6060", 200),
     ("here.example:80", 200),     ("evil.example", 403), ("localhost.evil.example", 403), ("127.0.0.2", 403),
     ("localhost:x", 403), ("localhost@evil", 403), ("", 403), ("localhost/", 403), (None, 403),
     ("localhost\r\nHost: localhost", 403), ("localhost\r\n evil", 403)],
)  # fmt: skip
def test_host_must_be_allowed(door: Door, host: str | None, status: int) -> None:
    with serving(door, hosts=("Here.example",)) as where:
        assert send(where, request("/healthz", host=host)).status == status


def test_other_address_is_allowed_by_itself(door: Door) -> None:
    with serving(door, "127.0.0.2:0") as where:
        assert send(where, request("/healthz", host=where.removeprefix("http://"))).status == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [("Origin: http://evil.example", 403), ("Origin: null", 403), ("origin: http://localhost", 403),
     ("Sec-Fetch-Site: cross-site", 403), ("Sec-Fetch-Site: same-site", 403), ("Sec-Fetch-Site: none", 200)],
)  # fmt: skip
def test_web_pages_are_refused(where: str, header: str, status: int) -> None:
    assert get(where, "/healthz", header).status == status


@pytest.mark.parametrize(
    "path", ["/", "/debug/pprof/", "/debug/pprof/heap", "/metrics/", "/../metrics", "/%6detrics"]
)
def test_other_paths_are_not_found(where: str, path: str) -> None:
    assert get(where, path).status == 404


@pytest.mark.parametrize(
    ("head", "status"),
    [(b"GET /metrics\r\n\r\n", 403), (b"GET /metrics HTTP/2.0\r\nHost: localhost\r\n\r\n", 505),
     (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505), (b"GET /metrics HTTP/x\r\n\r\n", 400),
     (b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n", 400), (b"\r\n\r\n", 400), (b"GET\r\n\r\n", 400),
     (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n", 400),
     (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), 0), (b"\0" * 100, 0),
     (b"GET /" + b"a" * 1_000_000 + b" HTTP/1.1\r\n\r\n", 431),
     (b"GET / HTTP/1.1\r\nA: " + b"a" * 1_000_000, 431),
     (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n", 431),
     (b"GET / HTTP/1.1\r\n" + b"A:b\r\n" * 101 + b"\r\n", 431),
     (request("/healthz") + b"\xff garbage\r\n" * 100 + request(PROFILE), 200)],
)  # fmt: skip
def test_bytes_that_are_no_request(
    where: str, head: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not status:  # no end of a head ever comes
        monkeypatch.setattr(server, "_HEAD_S", 0.05)
    with connected(where) as client:
        try:
            client.sendall(head)
        except ConnectionError:  # the answer is there, and the rest was not read
            assert len(head) >= 1_000_000
        assert read(client).status == status
    assert get(where, "/healthz").status == 200


def test_slow_request_is_given_up(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEAD_S", 0.3)
    with connected(where) as silent, connected(where) as slow:
        slow.settimeout(0.01)
        while True:  # a byte each 10 ms: no single read is late
            try:
                slow.send(b"a")
                if not slow.recv(4096):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert read(silent).status == 0


def test_slow_reader_is_given_up(door: Door, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_SEND_S", 0.1)
    with looping(door, lambda _: bytes(50_000_000)), connected(where) as client:
        client.sendall(request(PROFILE))
        while not client.recv(1):
            pass
        while door.metrics().count('code="200"') < 1 or len(threads_of_server()) > 1:
            time.sleep(0.001)  # until the connection is given up, though nothing reads it


def threads_of_server() -> list[threading.Thread]:
    return [
        each
        for each in threading.enumerate()
        if "serve_forever" in each.name or "process_request" in each.name
    ]


def test_connections_have_a_limit(door: Door, where: str) -> None:
    clients = [connected(where) for _ in range(server._MAX_CONNECTIONS)]
    try:
        while len(threads_of_server()) <= server._MAX_CONNECTIONS:
            time.sleep(0.001)
        while (reply := get(where, "/healthz")).status == 200:
            time.sleep(0.001)  # until the threads have begun
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
    finally:
        for client in clients:
            client.close()
    while get(where, "/healthz").status != 200:
        time.sleep(0.001)


def test_nothing_is_computed_while_a_thread_is_held(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_HOLD_S", 60)
    with connected(where) as client:
        with SUSPEND_LOCK:
            client.sendall(request("/healthz"))
            client.settimeout(0.2)
            with pytest.raises(TimeoutError):
                client.recv(1)
        client.settimeout(60)
        assert read(client).status == 200


def test_bug_is_no_traceback(
    where: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Door, "metrics", lambda _: 1 / 0)
    assert get(where, "/metrics").status == 500
    assert get(where, "/healthz").status == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("headers", "status"),
    [((f"Authorization: Bearer {TOKEN}",), 200), ((f"authorization: Bearer {TOKEN}",), 200), ((), 401),
     (("Authorization: Bearer",), 401), ((f"Authorization: Basic {TOKEN}",), 401),
     (("Authorization: Bearer \xff",), 401), ((f"Authorization: Bearer {TOKEN}x",), 401),
     (("Authorization: x", f"Authorization: Bearer {TOKEN}"), 401)],
)  # fmt: skip
def test_token_is_needed(door: Door, tmp_path: Path, headers: tuple[str, ...], status: int) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o640)  # as systemd's credentials
    with serving(door, token_file=path) as where:
        for page in ("/healthz", "/metrics", "/elsewhere"):
            reply = get(where, page, *headers)
            assert reply.status == (404 if status == 200 and page == "/elsewhere" else status)


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [(TOKEN, 0o644, "other users can read"), (TOKEN, 0o620, "other users can read"),
     ("short", 0o600, "no token"), ("", 0o600, "no token"), ("two words that are long", 0o600, "no token"),
     ("x" * 5000, 0o600, "")],
)  # fmt: skip
def test_token_file_is_checked(door: Door, tmp_path: Path, text: str, mode: int, why: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    if not why:
        with serving(door, token_file=path) as where:
            assert get(where, "/healthz").status == 401
        return
    with pytest.raises(SfsampleError, match=why), serving(door, token_file=path):
        pass


def test_missing_token_file_is_an_error(door: Door, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in ("none", "fifo", "."):
        with pytest.raises(SfsampleError, match="cannot read"), serving(door, token_file=tmp_path / name):
            pass


def test_unix_socket_is_for_this_user(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with serving(door, f"unix:{path}") as where:
        assert where == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert send(where, request("/healthz", host="any.example")).status == 200
        with (
            pytest.raises(SfsampleError, match=r"cannot listen: .*in use"),
            serving(Door(60, 10), f"unix:{path}"),
        ):
            pass
        assert get(where, "/healthz").status == 200
    assert not path.exists()


def test_socket_of_a_killed_watch_is_replaced_and_a_file_is_not(door: Door, tmp_path: Path) -> None:
    path = tmp_path / "door.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with serving(door, f"unix:{path}") as where:
        assert get(where, "/healthz").status == 200
    path.write_text("mine")
    with pytest.raises(SfsampleError, match="cannot listen"), serving(Door(60, 10), f"unix:{path}"):
        pass
    assert path.read_text() == "mine"


def test_address_in_use_is_an_error(door: Door, where: str) -> None:
    with (
        pytest.raises(SfsampleError, match=r"cannot listen: 127\.0\.0\.1:.*in use"),
        serving(door, where[7:]),
    ):
        pass


def test_request_at_the_end_is_refused(door: Door) -> None:
    with ThreadPoolExecutor() as pool:
        with serving(door) as where:
            reply = pool.submit(get, where, PROFILE)
            while not door.is_due():
                time.sleep(0.001)
        assert (reply.result().status, reply.result().body) == (503, b"sfsample ends\n")
        assert threads_of_server() == []


def test_many_at_once_are_all_answered(door: Door, where: str) -> None:
    with looping(door, encoded), ThreadPoolExecutor(50) as pool:
        paths = [PROFILE, "/metrics", "/healthz", "/x", f"{PROFILE}?pid=1"] * 20
        replies = list(pool.map(lambda path: get(where, path), paths))
    assert {reply.status for reply in replies} <= {200, 400, 404, 503}
    assert all(reply.headers.get("retry-after") for reply in replies if reply.status == 503)


SEEDS = (
    request(f"{PROFILE}?seconds=1&mode=cpu&rate=99"),
    request("/metrics", "Accept: */*", "Authorization: Bearer x", "Sec-Fetch-Site: none", method="HEAD"),
    request("/healthz", "Content-Length: 5", "Transfer-Encoding: chunked", "Expect: 100-continue") + b"12345",
)


def mutated(random: Random) -> bytes:
    """Return a request with some bytes changed, removed or doubled; most keep their empty line."""
    data = bytearray(random.choice(SEEDS))
    for _ in range(random.randint(1, 6)):
        at = random.randrange(len(data) or 1)
        part = data[at : at + random.randint(1, 20)]
        data[at : at + len(part)] = random.choice(
            [b"", part + part, bytes([random.randrange(256)]), b"\r\n", b"%00", b"\0", b":", b" "]
        )
    return bytes(data) + random.choice([b"", b"\r\n\r\n"])


def test_mutated_requests_get_an_answer_or_none(
    door: Door, where: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bugs: list[object] = []
    monkeypatch.setattr(server.Server, "handle_error", lambda *arguments: bugs.append(arguments))
    monkeypatch.setattr(server, "_HEAD_S", 0.05)
    random = Random("requests")  # noqa: S311 - the same inputs each time
    statuses = set()
    with looping(door, encoded):
        for _ in range(500):
            statuses.add(send(where, mutated(random)).status)
        assert get(where, "/healthz").status == 200
    assert statuses <= {0, 200, 400, 403, 404, 405, 431, 501, 503, 505}
    assert {200, 400, 404, 405} <= statuses
    assert bugs == []
    assert capfd.readouterr() == ("", "")
