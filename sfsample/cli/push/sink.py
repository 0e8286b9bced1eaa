"""Has child processes push the history that `watch` keeps; no backend waits for another one's child.

`watch` only writes a byte when there is a new slice.  A child that has ended is started again.
"""

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from sfsample.cli.push.backend import Backend, check_credentials
from sfsample.cli.push.command import END_S
from sfsample.cli.push.mark import Mark
from sfsample.cli.sinks import Metrics, Sink
from sfsample.history.facts import Slice

_RESTART_S = 60.0  # between two starts
_GRACE_S = 2.0


class PushSink(Sink):
    """Keeps nothing itself: the history before it does."""

    def __init__(self, arguments: Namespace, directory: str) -> None:
        auth_file: str | None = arguments.push_auth_file
        check_credentials(arguments)
        auth = [f"--push-auth-file={auth_file}"] if auth_file else []
        words = ["history", "push", "--follow", "--history", directory, *auth]
        self._children = [
            _Child(words, backend, Mark(directory, backend.text, None)) for backend in arguments.push
        ]
        self._begin_s = self._kept_s = 0.0  # of the first slice, and the end of the latest one

    def prepare(self) -> None:
        """Start the children; what an earlier watch has left is sent."""
        for child in self._children:
            child.wake()

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002
        """Say that there is a slice."""
        self._begin_s, self._kept_s = self._begin_s or whole.begin_s, whole.end_s
        self.prepare()
        return ""

    def close(self) -> None:
        """Let the children send what is left, for a few seconds."""
        until_s = time.monotonic() + END_S + _GRACE_S
        for child in self._children:
            child.leave()
        for child in self._children:
            child.end(until_s - time.monotonic())

    def metrics(self) -> Metrics:
        """Return for each backend how many slices it has taken and not taken, and how far it is behind."""
        names = [child.backend.kind for child in self._children]
        lag, sent, dropped = dict[str, float](), dict[str, float](), dict[str, float]()
        for at, child in enumerate(self._children):
            mark, number = child.mark, names[:at].count(names[at])
            mark.load()
            label = f'backend="{names[at]}{f"-{number + 1}" if number else ""}"'
            lag[f"{{{label}}}"] = max(0.0, self._kept_s - (mark.until_s or self._begin_s))
            sent[f"{{{label}}}"] = mark.sent
            dropped |= {f'{{{label},reason="{why}"}}': count for why, count in sorted(mark.dropped.items())}
        return {"sfsample_push_lag_seconds": lag, "sfsample_pushed_slices": sent,
                "sfsample_push_dropped_slices": dropped}  # fmt: skip


class _Child:
    def __init__(self, words: list[str], backend: Backend, mark: Mark) -> None:
        self._words = [*words, "--push", backend.text]
        self.backend, self.mark = backend, mark
        self._process: subprocess.Popen[bytes] | None = None
        self._due_s = 0.0

    def wake(self) -> None:
        """Say that there is a slice; start it if it does not run, and was not started just now."""
        if self._process is not None and self._process.poll() is None:
            with suppress(OSError):  # it has ended, or 64 KiB of bytes wait
                os.write(self._process.stdin.fileno(), b"\n")  # type: ignore[union-attr]
        elif time.monotonic() >= self._due_s:
            self._due_s = time.monotonic() + _RESTART_S
            self.leave()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sfsample", *self._words], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]

    def leave(self) -> None:
        """Let it end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def end(self, patience_s: float) -> None:
        """Wait until it has ended; what it has not sent then is sent by the next one."""
        if self._process is not None:
            try:
                self._process.wait(max(0.0, patience_s))
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
