"""Which backend slices are sent to (`--push KIND=URL`), and the headers that its file of credentials adds.

No credential is in a flag, a message or a file of the history: only in the file of `--push-auth-file`.
"""

import os
import re
from argparse import ArgumentTypeError, Namespace
from typing import NamedTuple
from urllib.parse import urlsplit

from sfsample.cli.secret_file import read_secret
from sfsample.cli.values import is_address, is_loopback
from sfsample.errors import SfsampleError

PATHS = {"pyroscope": "/push.v1.PusherService/Push", "parca": "/api/profiles/writeraw",
         "otlp": "/v1development/profiles"}  # fmt: skip
_WHAT = "KIND=URL, KIND one of pyroscope, parca, otlp (pyroscope=http://127.0.0.1:4040)"
_TENANT = "x-scope-orgid"  # no credential
_HEADER = re.compile(r"([A-Za-z0-9-]+):\s*([ -~]+)")
_OURS = re.compile(r"content-.*|transfer-encoding|host|connection|expect|te|trailer|upgrade", re.IGNORECASE)


class Backend(NamedTuple):
    """A backend; `text` is what the flag said, `path` where requests go."""

    text: str
    kind: str
    host: str
    port: int
    is_tls: bool
    path: str

    @property
    def is_private(self) -> bool:
        """Whether what is sent to it cannot be read on the way."""
        return self.is_tls or self.host == "localhost" or (is_address(self.host) and is_loopback(self.host))


def parse_backend(text: str) -> Backend:
    """Parse KIND=URL.  Raises ArgumentTypeError, which does not repeat the URL: it may have a password."""
    kind, _, url = text.partition("=")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ArgumentTypeError(f"not {_WHAT}") from None
    if "@" in parts.netloc:
        raise ArgumentTypeError("a URL with a user or a password: other users see it; put a line "
                                "`Authorization: ...` into the file of --push-auth-file")  # fmt: skip
    if (
        kind not in PATHS
        or parts.scheme not in ("http", "https")
        or not host
        or not re.fullmatch("[!-~]+", url)
    ):
        raise ArgumentTypeError(f"not {_WHAT}")
    if parts.query or parts.fragment:
        raise ArgumentTypeError("a URL with ? or #: only a path may follow the address")
    is_tls = parts.scheme == "https"
    return Backend(
        text, kind, host, port or (443 if is_tls else 80), is_tls, parts.path.rstrip("/") + PATHS[kind]
    )


def headers_for(backend: Backend, path: str | None) -> dict[str, str]:
    """Return the headers that a file has for a backend: those above any `[...]`, and those below its own.

    systemd's credential `push-auth`, where there is one, is that file.  Raises SfsampleError.
    """
    given = os.path.join(os.environ.get("CREDENTIALS_DIRECTORY", ""), "push-auth")
    path = given if os.path.isabs(given) and os.path.exists(given) else path
    headers: dict[str, str] = {}
    is_for_it = True
    for number, line in enumerate(
        read_secret(path).decode("utf-8", "replace").splitlines() if path else (), 1
    ):
        text = line.strip()
        if re.fullmatch(r"\[.*\]", text):
            is_for_it = text[1:-1] in (backend.kind, backend.text)
        elif text and not text.startswith("#"):
            header = _HEADER.fullmatch(text)
            if header is None or _OURS.fullmatch(header[1]):
                raise SfsampleError(
                    f"{path}: line {number} is no header that can be added",
                    "a line is `Authorization: Bearer TOKEN`, [KIND], or a # comment",
                )
            if is_for_it:
                headers[header[1]] = header[2]
    if not backend.is_private and any(name.lower() != _TENANT for name in headers):
        raise SfsampleError(f"credentials would be sent unencrypted: {backend.text}",
                            "use https://, or a proxy on this machine that speaks TLS")  # fmt: skip
    return headers


def check_credentials(arguments: Namespace) -> None:
    """Raise SfsampleError where the file of credentials cannot be used."""
    for backend in arguments.push:
        headers_for(backend, arguments.push_auth_file)
