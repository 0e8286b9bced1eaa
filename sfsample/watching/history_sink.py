"""Keeps the slices of `watch` in a history.  A child process merges old slices, which takes seconds."""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from shlex import quote

from sfsample.core.quantities import listed
from sfsample.errors import SfsampleError
from sfsample.history import Retention
from sfsample.history.facts import Slice
from sfsample.history.paths import DAY_S, file_names
from sfsample.history.retention import size_of
from sfsample.history.store import History
from sfsample.watching.own_program import prune_words, start_child
from sfsample.watching.program import Metrics, Say, Sink, Trouble

_TIDY_INTERVAL_S = 3600.0
_MAX_SHOWN = 3  # services that a message names
_MIN_GAP_S = 2.0


class HistorySink(Sink):
    """Adds each slice and each gap to the history in a directory."""

    def __init__(self, directory: str, retention: Retention, say: Say) -> None:
        self._directory, self._retention, self._say = directory, retention, say
        self._services: list[str] = []  # services of the last slice
        self._ends_s: dict[str, float] = {}  # service -> end of the last slice or gap in the history
        self._lost: set[str] = set()  # services whose last slice could not be written
        self._said: set[str] = set()  # messages that were already printed
        self._history: History | None = None
        self._tidy: subprocess.Popen[bytes] | None = None
        self._tidy_due_s = time.monotonic()
        self._unstarted = Trouble(say, "old slices are neither merged nor deleted until then")

    def prepare(self) -> None:
        """Open the history."""
        self._open()

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002 - a sink's
        """Keep the part of each service; return a text about the services, for a message.

        If a part cannot be kept (another watch keeps its service, for example), the reason is printed once.
        Raises SfsampleError if no part is kept.
        """
        self._services = [part.service for part in parts]
        history, kept, failures = self._open(), dict[str, None](), list[SfsampleError]()
        for part in parts:
            try:
                self._add(history, part)
                kept[part.service] = None
            except SfsampleError as failure:
                self._lost.add(part.service)
                failures.append(failure)
        history.let_go(keep=self._services)
        self._tidy_now_and_then()
        if not kept and failures:
            raise failures[0]
        self._say_once(failures, "the other services are kept; this message comes once")
        check = f"sfsample history check --history {quote(self._directory)} shows what is wrong"
        self._say_once([SfsampleError(problem) for problem in history.problems], check)
        return f"history of {listed([*kept], _MAX_SHOWN)}"

    def _add(self, history: History, part: Slice) -> None:
        """Keep a slice; keep a gap before the slice if sfsample did not run or could not write."""
        service, now_s = part.service, part.begin_s
        is_new, was_lost = service not in self._ends_s, service in self._lost
        end_s = history.last_end_s(service, now_s) if is_new else self._ends_s[service]
        history.add(part)
        self._ends_s[service] = part.end_s
        self._lost.discard(service)
        if (is_new or was_lost) and end_s is not None and now_s - end_s > _MIN_GAP_S:
            why = "slices could not be written" if was_lost else "sfsample did not watch it"
            history.add_gap(service, end_s, now_s, why)

    def _say_once(self, failures: Sequence[SfsampleError], remedy: str) -> None:
        for failure in failures:
            if str(failure) not in self._said:
                self._said.add(str(failure))
                self._say(str(failure), *failure.help, remedy)

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep a gap of each service of the last slice; before the first slice, a gap of the target."""
        for service in dict.fromkeys(self._services) or (target,):
            if service not in self._lost:  # `_add` keeps a longer gap for a service in `_lost`
                self._open().add_gap(service, begin_s, end_s, why)
                self._ends_s[service] = end_s

    def pin(self, last_s: float) -> int:
        """Pin the slices of the last `last_s` seconds, of each service with a new slice in this time."""
        now_s = time.time()
        self._ends_s = {name: at_s for name, at_s in self._ends_s.items() if at_s > now_s - last_s}
        return self._open().pin(self._ends_s, now_s - last_s, now_s)

    def metrics(self) -> Metrics:
        """Return the size of the history in bytes, and the begin of its oldest day."""
        with suppress(OSError):
            if names := file_names(self._directory):
                return {"sfsample_history_bytes": {"": size_of(self._directory)},
                        "sfsample_history_oldest_timestamp_seconds": {"": names[0].day * DAY_S}}  # fmt: skip
        return {}

    def close(self) -> None:
        """Close the history, so that other processes may write to it.  The child that tidies goes on."""
        if self._history is not None:
            self._history.close()

    def _open(self) -> History:
        if self._history is None:
            self._history = History(self._directory)
        return self._history

    def _tidy_now_and_then(self) -> None:
        """Start `sfsample history prune` every hour, unless the last child still runs."""
        if time.monotonic() < self._tidy_due_s or (self._tidy is not None and self._tidy.poll() is None):
            return
        words = prune_words(self._directory, self._retention)
        self._tidy = start_child(words, self._unstarted, stderr=subprocess.DEVNULL)
        if self._tidy is not None:
            self._tidy_due_s = time.monotonic() + _TIDY_INTERVAL_S
