"""Parses --push KIND=URL, and reads the headers with credentials, which no other file or flag has."""

import os
import re
from typing import NamedTuple
from urllib.parse import urlsplit

from sfsample.core.foreign import total
from sfsample.core.quantities import BadValue
from sfsample.errors import SfsampleError
from sfsample.watching.options import Push, is_loopback, read_secret

PATHS = {"pyroscope": "/push.v1.PusherService/Push", "parca": "/api/profiles/writeraw",
         "otlp": "/v1development/profiles"}  # fmt: skip
_WHAT = "KIND=URL, KIND one of pyroscope, parca, otlp (pyroscope=http://127.0.0.1:4040)"
_TENANT = "x-scope-orgid"  # no credential
_HEADER = re.compile(r"([A-Za-z0-9-]+):\s*([ -~]+)")


class Backend(NamedTuple):
    """A backend of --push."""

    text: str  # the value of the flag
    kind: str
    host: str
    port: int
    is_tls: bool
    path: str  # the path in the URL of requests

    @property
    def is_private(self) -> bool:
        """True if no other machine can read the requests on their way."""
        return self.is_tls or self.host == "localhost" or bool(total(is_loopback)(self.host))


def parse_backend(text: str) -> Backend:
    """Parse KIND=URL.  Raises BadValue, which does not repeat the URL, as that may contain a password."""
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
    """Return the headers that a file adds to each request.  Raises SfsampleError.

    If systemd passes the credential `push-auth`, it replaces the file, which the service cannot read.
    """
    credential = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", ""), "push-auth")
    path = credential if os.path.isabs(credential) and os.path.exists(credential) else path
    headers = {} if path is None else _read(path)
    if not backend.is_private and any(name.lower() != _TENANT for name in headers):
        raise SfsampleError(f"credentials would be sent unencrypted: {backend.text}",
                            "use https://, or a proxy on this machine that speaks TLS")  # fmt: skip
    return headers


def _read(path: str) -> dict[str, str]:
    headers = dict[str, str]()
    for number, line in enumerate(read_secret(path).decode("utf-8", "replace").splitlines(), 1):
        if (text := line.strip()) and not text.startswith("#"):
            header = _HEADER.fullmatch(text)
            if header is None:
                raise SfsampleError(
                    f"{path}: line {number} is no header",
                    "a line is `Authorization: Bearer TOKEN`, or a # comment",
                )
            headers[header[1]] = header[2]
    return headers


def check_credentials(push: Push) -> None:
    """Raise SfsampleError if the file of credentials cannot be used."""
    for backend in push.backends:
        headers_for(backend, push.auth_file)
