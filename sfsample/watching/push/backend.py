"""Parses --push KIND=URL, reads headers with credentials, and keeps the mark: which slices were sent."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlsplit

from sfsample.core.filesystem import read_regular, whole_file
from sfsample.core.foreign import total
from sfsample.core.quantities import BadValue
from sfsample.errors import BadInput, SfsampleError
from sfsample.history.paths import lock
from sfsample.report.formats.profile_json import read_json
from sfsample.watching.options import Push, is_loopback, read_secret

PATHS = {"pyroscope": "/push.v1.PusherService/Push", "parca": "/api/profiles/writeraw",
         "otlp": "/v1development/profiles"}  # fmt: skip
_WHAT = "KIND=URL, KIND one of pyroscope, parca, otlp (pyroscope=http://127.0.0.1:4040)"
_TENANT = "x-scope-orgid"  # header without credentials
_MAX_MARK_BYTES = 16 << 20
_HEADER = re.compile(r"([A-Za-z0-9-]+):\s*([ -~]+)")


class Backend(NamedTuple):
    """A backend of --push."""

    text: str  # value of the flag: KIND=URL
    kind: str
    host: str
    port: int
    is_tls: bool
    path: str  # path in the URL of requests

    @property
    def is_private(self) -> bool:
        """True if no other machine can read the requests on their way."""
        return self.is_tls or self.host == "localhost" or bool(total(is_loopback)(self.host))


def parse_backend(text: str) -> Backend:
    """Parse KIND=URL.  Raises BadValue without the URL, because a URL may contain a password."""
    kind, _, url = text.partition("=")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise BadValue(f"not {_WHAT}") from None
    if "@" in parts.netloc:
        raise BadValue("a URL with a user or a password: other users see it; put a line "
                                "`Authorization: ...` into the file of --push-auth-file")  # fmt: skip
    is_url = host and parts.scheme in ("http", "https") and re.fullmatch("[!-~]+", url)
    if kind not in PATHS or not is_url or parts.query or parts.fragment:
        raise BadValue(f"not {_WHAT}")
    is_tls = parts.scheme == "https"
    path = parts.path.rstrip("/") + PATHS[kind]
    return Backend(text, kind, host, port or (443 if is_tls else 80), is_tls, path)


def headers_for(backend: Backend, path: str | None) -> dict[str, str]:
    """Return the headers that the file of --push-auth-file adds to each request.  Raises SfsampleError.

    In a systemd service, the credential `push-auth` replaces the file, which the service cannot read.
    """
    credential = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", ""), "push-auth")
    path = credential if os.path.isabs(credential) and os.path.exists(credential) else path
    headers = {} if path is None else _read(path, backend.kind)
    if not backend.is_private and any(name.lower() != _TENANT for name in headers):
        raise SfsampleError(f"credentials would be sent unencrypted: {backend.text}",
                            "use https://, or a proxy on this machine that speaks TLS")  # fmt: skip
    return headers


def _read(path: str, kind: str) -> dict[str, str]:
    """Return the headers before the first section of a file, and the headers of the section [KIND]."""
    headers, is_for_it = dict[str, str](), True
    for number, line in enumerate(read_secret(path).decode("utf-8", "replace").splitlines(), 1):
        if (text := line.strip()) and not text.startswith("#"):
            if text[1:-1] in PATHS and text == f"[{text[1:-1]}]":
                is_for_it = text[1:-1] == kind
                continue
            header = _HEADER.fullmatch(text)
            if header is None:
                raise SfsampleError(
                    f"{path}: line {number} is no header",
                    "a line is `Authorization: Bearer TOKEN`, [KIND], or a # comment",
                )
            if is_for_it:
                headers[header[1]] = header[2]
    return headers


def check_credentials(push: Push) -> None:
    """Raise SfsampleError if the file of credentials cannot be used."""
    for backend in push.backends:
        headers_for(backend, push.auth_file)


class Mark:
    """The mark of a backend, a small file in the directory of the history: which slices were sent.

    For each file of the history, the mark has the number of the last slice that was sent or given up.  No
    number is used twice in a file, so unsent slices have greater numbers.
    """

    def __init__(self, directory: str, backend: str) -> None:
        name = sha256(json.dumps([backend, None]).encode()).hexdigest()[:16]
        self.path = os.path.join(directory, f".push-{name}.json")
        self.sent = 0
        self.until_s = 0.0  # end of the latest slice that the backend has taken
        self.dropped: Counter[str] = Counter()  # number of slices that were given up, by reason
        self.done: dict[str, int] = {}  # number of the last slice that was sent or given up, by file
        self.load()

    def load(self) -> None:
        """Read the file.  If it is damaged or missing, all slices are sent again."""
        with suppress(OSError, BadInput):
            found = read_json(read_regular(self.path, _MAX_MARK_BYTES))
            sent, until_s = found.field("sent").count(), found.field("until").number()
            dropped, done = ({key: part.field(key).count() for key in part.members()}
                             for part in map(found.field, ("dropped", "done")))  # fmt: skip
            self.sent, self.until_s, self.dropped, self.done = sent, until_s, Counter(dropped), done

    def save(self) -> None:
        """Write the file.  Raises OSError."""
        document = {"sent": self.sent, "until": self.until_s, "dropped": self.dropped, "done": self.done}
        with whole_file(self.path, 0o600) as file:
            file.write(json.dumps(document).encode())

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from pushing these slices.  Raises SfsampleError if another process pushes."""
        fd = lock(*os.path.split(self.path))
        if fd is None:
            raise SfsampleError("another process pushes this history to this backend")
        try:
            self.load()
            yield
        finally:
            os.close(fd)
