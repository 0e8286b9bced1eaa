"""Has a child process push the history that `watch` keeps, so that no backend holds the watch.

`watch` only writes a byte when there is a new slice, and starts a child that has ended again.
"""

import os
import subprocess
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from sfsample.cli.own_program import start_child
from sfsample.cli.push.backend import check_credentials
from sfsample.cli.push.mark import Mark
from sfsample.cli.sinks import Metrics, Sink
from sfsample.cli.trouble import Trouble
from sfsample.history.facts import Slice

_END_S = 10.0  # for what is left, when `watch` ends


class PushSink(Sink):
    """Keeps nothing itself: the history before it does."""

    def __init__(self, arguments: Namespace, directory: str) -> None:
        check_credentials(arguments)
        flags = [f"--push={backend.text}" for backend in arguments.push]
        if arguments.push_auth_file:
            flags.append(f"--push-auth-file={arguments.push_auth_file}")
        self._words = ["history", "push", "--follow", "--history", directory, *flags]
        self._marks = [(backend.kind, Mark(directory, backend.text)) for backend in arguments.push]
        self._pipe = os.pipe()  # stdin of each child: it ends when this process does
        os.set_blocking(self._pipe[1], False)
        self._child: subprocess.Popen[bytes] | None = None
        self._unstarted = Trouble("slices wait in the history")
        self._begin_s = self._kept_s = 0.0  # of the first slice, and the end of the latest one

    def prepare(self) -> None:
        """Say that there is a slice, or start the child, which sends what an earlier watch has left too."""
        with suppress(BlockingIOError):  # no child has read 64 KiB of these
            os.write(self._pipe[1], b"\n")
        if self._child is None or self._child.poll() is not None:
            self._child = start_child(self._words, self._unstarted, stdin=self._pipe[0])

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002
        """Say that there is a slice."""
        self._begin_s, self._kept_s = self._begin_s or whole.begin_s, whole.end_s
        self.prepare()
        return ""

    def close(self) -> None:
        """Let the child send what is left; a kill loses nothing, as the next watch goes on from its mark."""
        for fd in self._pipe:
            os.close(fd)
        if self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(_END_S)
            self._child.kill()
            self._child.wait()

    def metrics(self) -> Metrics:
        """Return for each backend how many slices it has taken and not taken, and how far it is behind."""
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
