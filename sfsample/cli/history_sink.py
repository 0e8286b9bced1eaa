"""Keeps the slices of `watch` in a history, and has a child process merge and delete old ones.

To merge a day of slices takes seconds, in which the watch could take no sample.
"""

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import suppress

from sfsample.cli.sinks import Metrics, Sink
from sfsample.errors import SfsampleError
from sfsample.history.facts import Slice
from sfsample.history.files import DAY_S, file_names
from sfsample.history.store import History
from sfsample.history.tiers import size_of

_TIDY_INTERVAL_S = 3600.0
_NICE = 19
_MAX_SHOWN = 3  # services


class HistorySink(Sink):
    """Adds each slice and each gap to the history in a directory."""

    def __init__(self, arguments: Namespace, directory: str) -> None:
        limits = {"--keep-for": arguments.keep_for, "--keep-bytes": arguments.keep_bytes}
        self._keep = [f"{flag}={value}" for flag, value in limits.items() if value]
        self._directory = directory
        self._services: list[str] = []  # that the last slice had
        self._ends_s: dict[str, float] = {}  # of each service the end of its last slice
        self._history: History | None = None
        self._tidy: subprocess.Popen[bytes] | None = None
        self._tidy_due_s = time.monotonic()

    def prepare(self) -> None:
        """Open the history."""
        self._open()

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:
        """Keep the part of each service; return where.  Raises SfsampleError where one is not kept."""
        self._services = [part.service for part in parts]
        self._ends_s |= dict.fromkeys(self._services, whole.end_s)
        history, lost = self._open(), list[SfsampleError]()
        for part in parts:
            try:
                history.add(part)
            except SfsampleError as failure:
                lost.append(failure)
        history.let_go(keep=self._services)
        self._tidy_now_and_then()
        if lost:
            raise lost[0]
        names = dict.fromkeys(self._services)
        return f"history of {', '.join(names) if len(names) <= _MAX_SHOWN else f'{len(names)} services'}"

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep a gap of each service that the last slice had; of the target before the first."""
        for service in dict.fromkeys(self._services) or (target,):
            self._open().add_gap(service, begin_s, end_s, why)

    def pin(self, last_s: float) -> int:
        """Pin slices of the services that had one in this time; others may write the same history."""
        now_s = time.time()
        self._ends_s = {name: at_s for name, at_s in self._ends_s.items() if at_s > now_s - last_s}
        return self._open().pin(self._ends_s, now_s - last_s, now_s)

    def metrics(self) -> Metrics:
        """Return the bytes of the history, and when its oldest day began."""
        with suppress(OSError):
            if names := file_names(self._directory):
                return {"sfsample_history_bytes": {"": size_of(self._directory)},
                        "sfsample_history_oldest_timestamp_seconds": {"": names[0].day * DAY_S}}  # fmt: skip
        return {}

    def close(self) -> None:
        """Let others write; a child that tidies goes on."""
        if self._history is not None:
            self._history.close()

    def _open(self) -> History:
        if self._history is None:
            self._history = History(self._directory)
        return self._history

    def _tidy_now_and_then(self) -> None:
        """Start `sfsample history prune`, unless the last one still runs."""
        if time.monotonic() < self._tidy_due_s or (self._tidy is not None and self._tidy.poll() is None):
            return
        self._tidy_due_s = time.monotonic() + _TIDY_INTERVAL_S
        words = ["-m", "sfsample", "history", "prune", "--history", self._directory, *self._keep]
        self._tidy = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        with suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PROCESS, self._tidy.pid, _NICE)
