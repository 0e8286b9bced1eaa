"""Starts a child that pushes the history of `watch`, and announces each slice to the child by one byte."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from sfsample.history.facts import Slice
from sfsample.watching.options import Push
from sfsample.watching.own_program import push_words, start_child
from sfsample.watching.program import Metrics, Say, Sink, Trouble
from sfsample.watching.push.backend import Mark, check_credentials

_END_S = 10.0  # time in which the child may send the last slices when `watch` ends


class PushSink(Sink):
    """Announces new slices to the child.  HistorySink keeps the slices; this sink keeps none."""

    def __init__(self, push: Push, directory: str, say: Say) -> None:
        check_credentials(push)
        self._words = push_words(directory, push)
        self._marks = [(backend.kind, Mark(directory, backend.text)) for backend in push.backends]
        self._pipe = os.pipe()  # stdin of each child: the pipe ends when this process ends
        os.set_blocking(self._pipe[1], False)
        self._child: subprocess.Popen[bytes] | None = None
        self._unstarted = Trouble(say, "slices wait in the history")
        self._begin_s = self._kept_s = 0.0  # begin of the first slice, and end of the latest one

    def prepare(self) -> None:
        """Write a byte to the child.  If no child runs, start one, which also sends slices of old watches."""
        with suppress(BlockingIOError):  # the pipe is full: 64 KiB wait for a child
            os.write(self._pipe[1], b"\n")
        if self._child is None or self._child.poll() is not None:
            self._child = start_child(self._words, self._unstarted, stdin=self._pipe[0])

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002
        """Announce a slice to the child."""
        self._begin_s, self._kept_s = self._begin_s or whole.begin_s, whole.end_s
        self.prepare()
        return ""

    def close(self) -> None:
        """Give the child 10 s to send the last slices.  A later watch sends the slices that remain."""
        for fd in self._pipe:
            os.close(fd)
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_S)
            self._child.kill()
            self._child.wait()

    def metrics(self) -> Metrics:
        """Return the lag of each backend, and how many slices the backend has taken and refused."""
        lag, sent, dropped = dict[str, float](), dict[str, float](), dict[str, float]()
        kinds: list[str] = []
        for kind, mark in self._marks:
            mark.load()
            kinds.append(kind)
            number = kinds.count(kind)
            label = f'backend="{kind}{f"-{number}" if number > 1 else ""}"'
            lag[f"{{{label}}}"] = max(0.0, self._kept_s - (mark.until_s or self._begin_s))
            sent[f"{{{label}}}"] = mark.sent
            dropped |= {f'{{{label},reason="{why}"}}': count for why, count in sorted(mark.dropped.items())}
        return {"sfsample_push_lag_seconds": lag, "sfsample_pushed_slices_total": sent,
                "sfsample_push_dropped_slices_total": dropped}  # fmt: skip
