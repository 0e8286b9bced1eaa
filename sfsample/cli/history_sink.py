"""Keeps the slices of `watch` in a history, and has a child process merge and delete old ones.

To merge a day of slices takes seconds, in which the watch could take no sample.
"""

import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from sfsample.cli.sinks import ClosedSlice, Metrics, NotKept
from sfsample.errors import SfsampleError
from sfsample.history.facts import Slice
from sfsample.history.files import DAY_S, file_names
from sfsample.history.store import History
from sfsample.history.tiers import size_of

_TIDY_INTERVAL_S = 3600.0
_NICE = 19
_MAX_SHOWN = 3  # services


class HistorySink:
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
        """Open the history.  Raises NotKept."""
        self._do(lambda _: None)

    def add(self, closed: ClosedSlice) -> str:
        """Keep the part of each service; return where.  Raises NotKept where one is not kept."""
        self._services = [service for service, _ in closed.parts]
        self._ends_s |= dict.fromkeys(self._services, closed.end_s)
        lost: list[NotKept] = []
        for service, report in closed.parts:
            build_id = (report.target or {}).get("build_id")
            kept = Slice(
                closed.begin_s, closed.end_s, service, report, report.labels or {},
                build_id if isinstance(build_id, str) else None,
            )  # fmt: skip
            try:
                self._do(partial(History.add, closed=kept))
            except NotKept as failure:
                lost.append(failure)
        if self._history is not None:
            self._history.let_go(keep=self._services)
        self._tidy_now_and_then()
        if lost:
            raise lost[0]
        return f"history of {_shown(self._services)}"

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep a gap of each service that the last slice had; of the target before the first.

        Raises NotKept.
        """
        for service in dict.fromkeys(self._services) or (target,):
            self._do(partial(History.add_gap, service=service, begin_s=begin_s, end_s=end_s, why=why))

    def pin(self, last_s: float) -> int:
        """Pin slices.  Raises NotKept."""
        counts: list[int] = []
        now_s = time.time()
        self._ends_s = {name: at_s for name, at_s in self._ends_s.items() if at_s > now_s - last_s}
        self._do(lambda history: counts.append(history.pin(self._ends_s, now_s - last_s, now_s)))
        return sum(counts)

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

    def _do(self, work: Callable[[History], None]) -> None:
        try:
            if self._history is None:
                self._history = History(self._directory)
            work(self._history)
        except SfsampleError as failure:
            is_full = "free some space" in failure.help
            raise NotKept(str(failure), "; ".join(failure.help), is_full=is_full) from None

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


def _shown(services: list[str]) -> str:
    names = dict.fromkeys(services)
    return f"{len(names)} services" if len(names) > _MAX_SHOWN else ", ".join(names)
