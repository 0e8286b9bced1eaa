"""A backend that fails as a test wants, one behaviour for each request, and decodes what it takes."""

import base64
import gzip
import json
import queue
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import (
    ExportProfilesServiceRequest,
)

from sfsample.formats.protobuf import fields
from sfsample.report.budget import ReadingBudget
from sfsample.report.formats.pprof import read

HANG_S = 60  # after which a test fails


class Request(NamedTuple):
    """What came."""

    line: str
    headers: dict[str, str]
    body: bytes


Behaviour = Callable[[socket.socket], object]


def answer(status: object, body: bytes = b"{}", *headers: str) -> Behaviour:
    """Answer with a status line and a body."""
    head = "\r\n".join([f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""])
    return lambda client: client.sendall(head.encode() + body)


def garbage(client: socket.socket) -> None:
    """Answer with what is no HTTP."""
    client.sendall(b"\x15\x03\x01 no HTTP\n\n")


def hang_up(client: socket.socket) -> None:
    """Close without an answer."""


def reset(client: socket.socket) -> None:
    """Begin an answer, and reset the connection."""
    client.sendall(b"HTTP/1.1 20")
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def hang(client: socket.socket) -> None:
    """Do not answer, until the client leaves."""
    while client.recv(4096):
        pass


def drip(client: socket.socket) -> None:
    """Answer with a byte now and then, until the client leaves."""
    client.settimeout(0.01)
    while True:
        client.sendall(b"H")
        with suppress(TimeoutError):
            if not client.recv(1):
                return


def endless_head(client: socket.socket) -> None:
    """Send headers until the client leaves."""
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        client.sendall(b"a: b\r\n")


def endless_body(client: socket.socket) -> None:
    """Send a body until the client leaves."""
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(bytes(65536))


class FakeBackend:
    """Listens on loopback; `behaviours` are those of the next requests, then it takes all."""

    def __init__(self) -> None:
        self.behaviours: list[Behaviour] = []
        self.requests: list[Request] = []
        self.taken: list[Request] = []  # those that it has answered with 200
        self.arrived: queue.Queue[Request] = queue.Queue()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def serve(self) -> None:
        """Serve one connection after another, until the socket is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                with suppress(ConnectionError), client:
                    self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        with client.makefile("rb") as stream:
            line = stream.readline().decode().strip()
            head = iter(lambda: stream.readline().decode().strip(), "")
            headers = {name.lower(): text for name, _, text in (row.partition(": ") for row in head)}
            request = Request(line, headers, stream.read(int(headers.get("content-length", 0))))
        if not line:  # the test ends
            return
        self.requests.append(request)
        behaviour = self.behaviours.pop(0) if self.behaviours else None
        if behaviour is None:
            self.taken.append(request)
        (behaviour or answer("200 OK"))(client)
        self.arrived.put(request)

    def close(self) -> None:
        """Listen no more."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextmanager
def backend() -> Iterator[FakeBackend]:
    """Yield a backend that listens."""
    fake = FakeBackend()
    thread = threading.Thread(target=fake.serve)
    thread.start()
    try:
        yield fake
    finally:
        fake.close()
        thread.join(HANG_S)
        assert not thread.is_alive()


# -- decoding

Sums = Counter[tuple[tuple[str, ...], str]]  # by the names of the frames, innermost first, and the type


def decode(kind: str, request: Request) -> tuple[str, dict[str, str], Sums]:
    """Return the id of a slice ("" where the protocol has none), its labels, its weights."""
    if kind == "otlp":
        return _otlp(gzip.decompress(request.body))
    if kind == "parca":
        [series] = json.loads(request.body)["series"]
        [sample] = series["samples"]
        labels = {row["name"]: row["value"] for row in series["labels"]["labels"]}
        return "", labels, _pprof(base64.b64decode(sample["rawProfile"]))
    [series] = _values(request.body, 1)
    labels = {_text(pair, 1): _text(pair, 2) for pair in _values(series, 1)}
    [sample] = _values(series, 2)
    return _text(sample, 2), labels, _pprof(_values(sample, 1)[0])


def _values(data: bytes, field: int) -> list[bytes]:
    return [bytes(value) for number, value in fields(memoryview(data)) if number == field]


def _text(data: bytes, field: int) -> str:
    return _values(data, field)[0].decode()


def _pprof(data: bytes) -> Sums:
    raw = gzip.decompress(data)
    assert not [label for sample in _values(raw, 2) for label in _values(sample, 3)]  # a series of its own
    report, sums = read(raw, ReadingBudget(len(data))), Counter()
    for stack in report.stacks:
        names = tuple(report.frames[at].text for at in stack.frames)
        for kind, weight in zip(report.weights, stack.weights, strict=True):
            sums[names, kind] += weight
    return +sums


def _otlp(data: bytes) -> tuple[str, dict[str, str], Sums]:
    request = ExportProfilesServiceRequest.FromString(data)
    tables, sums = request.dictionary, Counter()
    [resource] = request.resource_profiles
    [scope] = resource.scope_profiles
    kinds = {"samples": "samples", "wall": "wall_ns", "cpu": "cpu_ns"}
    for profile in scope.profiles:
        kind = kinds[tables.string_table[profile.sample_type.type_strindex]]
        for sample in profile.samples:
            places = [
                tables.location_table[at] for at in tables.stack_table[sample.stack_index].location_indices
            ]
            functions = [
                tables.function_table[line.function_index] for place in places for line in place.lines
            ]
            names = tuple(tables.string_table[function.name_strindex] for function in functions)
            sums[names, kind] += sum(sample.values)
    labels = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    return scope.profiles[0].profile_id.hex(), labels, +sums
