"""Defines the options of a watch, and reads secrets (a token, credentials) from files."""

import os
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING

from sfsample.core.filesystem import open_regular
from sfsample.errors import SfsampleError, UsageError
from sfsample.history import RETENTION, Retention
from sfsample.process.target import Target
from sfsample.recording.options import RecordOptions

if TYPE_CHECKING:
    from sfsample.watching.push.backend import Backend
    from sfsample.watching.triggers import Condition

_MAX_SECRET = 1 << 16  # bytes


@dataclass(frozen=True, kw_only=True)
class Listen:
    """The address of the HTTP server: the path of a Unix socket, or an IP address and a port."""

    address: str | tuple[str, int] | None = None
    token_file: str | None = None
    hosts: tuple[str, ...] = ()  # names that the header `Host` may have, besides the address

    def __post_init__(self) -> None:
        if self.address is None and (self.hosts or self.token_file is not None):
            raise UsageError("--listen-token-file and --listen-host need --listen")
        if self.token_file is None and isinstance(self.address, tuple) and not is_loopback(self.address[0]):
            what = f"--listen {self.address[0]} needs --listen-token-file FILE: other machines reach it"
            raise UsageError(what, "without a token: 127.0.0.1:PORT, or unix:PATH")


def is_loopback(address: str) -> bool:
    """Return True if only this machine can reach an IP address.  Raises ValueError for any other text."""
    from ipaddress import ip_address  # most commands listen nowhere

    return ip_address(address).is_loopback


@dataclass(frozen=True, kw_only=True)
class Push:
    """The backends that get the slices, and the file with additional headers."""

    backends: "tuple[Backend, ...]" = ()
    auth_file: str | None = None

    def __post_init__(self) -> None:
        if self.auth_file is not None and not self.backends:
            raise UsageError("--push-auth-file needs --push KIND=URL")


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Limits, beyond which slices are deleted.  None: no limit for files, `RETENTION` for the history."""

    keep: int | None = None  # number of files
    keep_for: float | None = None  # seconds
    keep_bytes: int | None = None  # size of all slices

    def of_history(self) -> Retention:
        """Return the limits of the history."""
        return Retention(keep_for=self.keep_for or RETENTION.keep_for,
                         keep_bytes=self.keep_bytes or RETENTION.keep_bytes)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files of --output-dir: one for each slice."""

    output_dir: str | None = None
    format: str = "json"
    threads: bool = False  # True: the first frame is name/TID


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """The options of a watch."""

    target: Target = Target()
    record: RecordOptions = RecordOptions(rate=19.0, mode="wall", max_overhead=0.03)
    idle: bool = False  # True: keep the stacks of threads that wait for work
    every: float = 60.0  # seconds from the begin of a slice to the begin of the next slice
    slice: float | None = None  # length in seconds; None: until the next slice begins
    files: Files = Files()
    keep: Keep = Keep()
    triggers: "tuple[Condition, ...]" = ()
    cooldown: float = 600.0  # least seconds from a trigger to the next trigger
    listen: Listen = Listen()
    push: Push = Push()
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.every < 1:
            raise UsageError("--every is shorter than a second",
                             "the name of a slice has the second in which it begins")  # fmt: skip
        if self.every < self.slice_s:
            raise UsageError("--every is shorter than --for", "slices must not overlap")

    @property
    def slice_s(self) -> float:
        """The length of a slice, in seconds."""
        return self.slice or self.every


def read_secret(path: str) -> bytes:
    """Return the bytes of a file that no other user can read or replace.  Raises SfsampleError."""
    try:
        fd = open_regular(path)
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path}: {failure.strerror}") from None
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if status.st_mode & 0o037 or status.st_uid not in (0, os.geteuid()):
            raise SfsampleError(
                f"other users can read or replace the secret: {path}", f"chmod 600 {quote(path)}"
            )
        return file.read(_MAX_SECRET)
