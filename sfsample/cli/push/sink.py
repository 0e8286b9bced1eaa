"""Has child processes push the history that `watch` keeps; no backend waits for another one's child.

`watch` only writes a byte when there is a new slice, and starts a child that has ended again.
"""

import os
import subprocess
import sys
import time
from argparse import Namespace
from contextlib import suppress

from sfsample.cli.push.backend import Backend, check_credentials
from sfsample.cli.push.mark import Mark
from sfsample.cli.sinks import ClosedSlice, Metrics

_END_S = 10.0  # for what is left, when `watch` ends


class PushSink:
    """Keeps nothing itself: the history before it does."""

    def __init__(self, arguments: Namespace, directory: str) -> None:
        auth_file: str | None = arguments.push_auth_file
        check_credentials(arguments)
        auth = [f"--push-auth-file={auth_file}"] if auth_file else []
        words = ["history", "push", "--follow", "--history", directory, *auth]
        self._children = [_Child(words, backend, directory) for backend in arguments.push]
        self._begin_s = self._kept_s = 0.0  # of the first slice, and the end of the latest one

    def prepare(self) -> None:
        """Start the children; what an earlier watch has left is sent."""
        for child in self._children:
            child.wake()

    def add(self, closed: ClosedSlice) -> str:
        """Say that there is a slice."""
        self._begin_s, self._kept_s = self._begin_s or closed.begin_s, closed.end_s
        self.prepare()
        return ""

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Do nothing: backends know no gaps."""

    def pin(self, last_s: float) -> int:  # noqa: ARG002 - a sink's
        """Do nothing: the history pins."""
        return 0

    def close(self) -> None:
        """Let the children send what is left, for a few seconds; the next watch sends the rest."""
        until_s = time.monotonic() + _END_S
        for child in self._children:
            child.leave()
        for child in self._children:
            child.end(until_s - time.monotonic())

    def metrics(self) -> Metrics:
        """Return for each backend how many slices it has taken and not taken, and how far it is behind."""
        lag, sent, dropped = dict[str, float](), dict[str, float](), dict[str, float]()
        kinds: list[str] = []
        for child in self._children:
            mark = child.mark
            mark.load()
            kinds.append(child.kind)
            number = kinds.count(child.kind)
            label = f'backend="{child.kind}{f"-{number}" if number > 1 else ""}"'
            lag[f"{{{label}}}"] = max(0.0, self._kept_s - (mark.until_s or self._begin_s))
            sent[f"{{{label}}}"] = mark.sent
            dropped |= {f'{{{label},reason="{why}"}}': count for why, count in sorted(mark.dropped.items())}
        return {"sfsample_push_lag_seconds": lag, "sfsample_pushed_slices_total": sent,
                "sfsample_push_dropped_slices_total": dropped}  # fmt: skip


class _Child:
    """A process that pushes to one backend."""

    def __init__(self, words: list[str], backend: Backend, directory: str) -> None:
        self._words = [*words, "--push", backend.text]
        self.kind, self.mark = backend.kind, Mark(directory, backend.text, None)
        self._process: subprocess.Popen[bytes] | None = None

    def wake(self) -> None:
        """Say that there is a slice; start it if it does not run."""
        if self._process is None or self._process.poll() is not None:
            self.leave()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sfsample", *self._words], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            os.set_blocking(self._process.stdin.fileno(), False)  # type: ignore[union-attr]
            return
        with suppress(OSError):  # it has just ended, or 64 KiB of bytes wait
            os.write(self._process.stdin.fileno(), b"\n")  # type: ignore[union-attr]

    def leave(self) -> None:
        """Let it end."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def end(self, patience_s: float) -> None:
        """Wait until it has ended; a kill loses nothing, as its mark is always true."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, patience_s))
            self._process.kill()
            self._process.wait()
