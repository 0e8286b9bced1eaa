"""A client that sends exact bytes, and a pull door without a target."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sfsample.cli import values
from sfsample.watching.options import Listen
from sfsample.watching.pull.door import Door, Wanted
from sfsample.watching.pull.server import listening

HANG_S = 60  # after which a test fails


class Reply:
    """An answer: its status, its headers by lower-case name, its body."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("ascii").split("\r\n")
        self.status = int(first.split()[1]) if first else 0
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        assert not self.headers.keys() & {"server", "x-powered-by", "access-control-allow-origin"}
        assert b"Traceback" not in data
        assert b"Python" not in head


def connected(where: str) -> socket.socket:
    """Connect to what `listening` has yielded."""
    if where.startswith("unix:"):
        client = socket.socket(socket.AF_UNIX)
        client.connect(where.removeprefix("unix:"))
    else:
        host, _, port = where.removeprefix("http://").rpartition(":")
        client = socket.create_connection((host.strip("[]"), int(port)))
    client.settimeout(HANG_S)
    return client


def send(where: str, data: bytes) -> Reply:
    """Send bytes; return the answer."""
    with connected(where) as client:
        client.sendall(data)
        return read(client)


def read(client: socket.socket) -> Reply:
    """Return the answer on a connection, which the server closes."""
    parts = []
    while part := client.recv(1 << 16):
        parts.append(part)
    return Reply(b"".join(parts))


def request(path: str, *headers: str, method: str = "GET", host: str | None = "localhost") -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", *([] if host is None else [f"Host: {host}"]), *headers, "", ""]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape")


def get(where: str, path: str, *headers: str) -> Reply:
    """Send a request as a client does."""
    return send(where, request(path, *headers))


@contextmanager
def serving(
    door: Door, listen: str = "127.0.0.1:0", token_file: object = None, hosts: tuple[str, ...] = ()
) -> Iterator[str]:
    """Open the door; yield where."""
    token_file = None if token_file is None else str(token_file)
    how = Listen(address=values.listen(listen), token_file=token_file, hosts=hosts)
    with listening(how.address, how, door) as where:
        yield where


@contextmanager
def looping(door: Door, record: Callable[[Wanted], bytes]) -> Iterator[None]:
    """Answer requests for profiles as the loop of `watch` does."""
    stop = threading.Event()

    def loop() -> None:
        while not stop.wait(0.001):
            door.serve(record)

    thread = threading.Thread(target=loop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
