"""Holds the state that the loop of `watch` and its HTTP server share: one requested profile, and metrics.

A thread of the server requests a profile (`ask`), and waits.  The loop records the profile, finds names, and
encodes the profile.  So no thread of the server touches a target.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

from sfsample.errors import SfsampleError
from sfsample.recording.options import Mode
from sfsample.recording.stats import Pauses, Stats
from sfsample.watching.program import Sink

_GRACE_S = 10.0  # time for names, encoding and writing
_PAUSES_S = (0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
_COUNTED = ("sfsample_slices_total", "sfsample_samples_total", "sfsample_missed_ticks_total",
            "sfsample_failures_total", "sfsample_pulled_profiles_total")  # fmt: skip


class Wanted:
    """A requested profile: its options (None: the option of the watch), and its result."""

    def __init__(self, seconds: int, mode: Mode | None = None, rate: float | None = None) -> None:
        self.seconds, self.mode, self.rate = seconds, mode, rate
        self.gone = False  # True: the client has closed the connection
        self.ended = threading.Event()
        self.data, self.failure = b"", ""


class Door:
    """The server calls `ask`, `why_unhealthy`, `metrics`, `count`.  The loop calls `count` and all others."""

    def __init__(self, every_s: float, slice_s: float, sinks: Sequence[Sink] = ()) -> None:
        self.targets = 0
        self._sinks = sinks
        self._patience_s = 2 * every_s + slice_s + _GRACE_S
        self._due_s = time.monotonic() + self._patience_s  # the next slice must be closed before this time
        self._last_failure = ""
        self._lock = threading.Lock()  # held by `ask`
        self.answering_s = 0.0  # CPU time of the threads that answer
        self.served_s = 0.0  # CPU time of the whole server
        self._wanted: Wanted | None = None
        self.has_ended = False  # the loop has ended
        # counts by name and label; as no lock protects them, the count of an answer may be lost
        self._counts: dict[str, dict[str, float]] = {name: {"": 0} for name in _COUNTED}
        self._last_slice: dict[str, float] = {}

    def is_due(self) -> bool:
        """Return True if a client waits for a profile."""
        return self._wanted is not None

    def serve(self, record: Callable[[Wanted], bytes]) -> bool:
        """Record the profile that a client waits for; return False if no client waits."""
        if (wanted := self._wanted) is None:
            return False
        self._due_s += wanted.seconds + _GRACE_S
        try:
            if not wanted.gone:
                wanted.data = record(wanted)
                self.count("pulled_profiles_total", number=not wanted.gone)
        except (SfsampleError, OSError, MemoryError, ValueError) as failure:
            wanted.failure = str(failure) or "out of memory"
            self.count("failures_total")
        finally:
            self._wanted = None
            wanted.ended.set()
        return True

    def count(self, name: str, label: str = "", number: float = 1) -> None:
        """Add a number to a metric, in the row of a label."""
        rows = self._counts.setdefault(f"sfsample_{name}", {})
        rows[label] = rows.get(label, 0) + number

    def closed(self, stats: Stats) -> None:
        """Count a slice that was recorded."""
        self.count("slices_total")
        self.count("samples_total", number=stats.samples)
        self.count("missed_ticks_total", number=stats.late_ticks)
        for loss in stats.losses:
            self.count("lost_total", f'{{reason="{loss.reason}"}}', loss.number)
        for end, value in _pauses(stats.pauses).items():
            self.count("stop_seconds", end, value)
        self._last_slice, self._last_failure = {"": time.time()}, ""
        self._due_s = time.monotonic() + self._patience_s

    def failed(self, what: object) -> None:
        """Count a slice that was lost."""
        self.count("failures_total")
        self._last_failure = str(what) or "out of memory"

    def ask(self, wanted: Wanted) -> int:
        """Request a profile; return 0, or the length in seconds of another profile that is being recorded."""
        with self._lock:
            if self._wanted is not None:
                return self._wanted.seconds
            self._wanted = wanted
        return 0

    def why_unhealthy(self) -> str:
        """Return the reason why no slice was closed in time; "": the watch is healthy."""
        late_s = time.monotonic() - self._due_s
        if late_s <= 0:
            return ""
        why = self._last_failure or "the loop hangs"
        return f"no slice was closed for {self._patience_s + late_s:.0f} s: {why}"

    def metrics(self) -> str:
        """Return the metrics as Prometheus text; docs/pull.md explains each metric."""
        values: dict[str, dict[str, float]] = {
            **self._counts,
            "sfsample_targets": {"": self.targets},
            "sfsample_last_slice_timestamp_seconds": self._last_slice,
            "process_cpu_seconds_total": {"": time.process_time()},
            "process_resident_memory_bytes": {"": _resident_bytes()},
            "process_open_fds": {"": len(os.listdir("/proc/self/fd"))},
        }
        for sink in self._sinks:
            values |= sink.metrics()
        lines = []
        for name, rows in values.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines += [f"# TYPE {name} {'histogram' if name == 'sfsample_stop_seconds' else kind}"]
            lines += [f"{name}{end} {number}" for end, number in dict(rows).items()]
        return "\n".join([*lines, ""])


def _pauses(pauses: Pauses) -> dict[str, float]:
    """Return the histogram of pauses: numbers by the end of the metric's name."""
    rows = {f'_bucket{{le="{limit_s}"}}': pauses.up_to(round(limit_s * 1e9)) for limit_s in _PAUSES_S}
    return {**rows, '_bucket{le="+Inf"}': pauses.count, "_count": pauses.count, "_sum": pauses.total / 1e9}


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
