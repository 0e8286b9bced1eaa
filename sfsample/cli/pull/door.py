"""What the loop of `watch` and the threads of its HTTP server share: one requested profile, and counts.

A thread of the server asks here and waits.  Only the loop records, and it names and encodes the profile when
the recording is over: no thread of the server ever touches a target, and none is held meanwhile.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from sfsample.cli.sinks import Metrics
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.errors import SfsampleError
from sfsample.recording.stats import Pauses, Stats

_GRACE_S = 10.0  # for names, encoding and writing
_PAUSES_S = (0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1.0)
_FAMILIES = {  # name -> type and help; in the order of `metrics`
    "sfsample_slices": ("counter", "Slices recorded and kept, those without a sample included."),
    "sfsample_samples": ("counter", "Samples in these slices."),
    "sfsample_missed_ticks": ("counter", "Ticks that were not taken, because the sampler was late."),
    "sfsample_failures": ("counter", "Slices that were lost, and requested profiles that failed."),
    "sfsample_pulled_profiles": ("counter", "Profiles recorded for a request."),
    "sfsample_http_responses": ("counter", "Answers to requests, by status."),
    "sfsample_lost": ("counter", "What is missing in these slices, by reason."),
    "sfsample_stop_seconds": (
        "histogram",
        "For how long threads were stopped, from the request to the release.",
    ),
    "sfsample_triggers": ("counter", "Triggers that were answered, by condition."),
    "sfsample_history_bytes": ("gauge", "Bytes of the history."),
    "sfsample_history_oldest_timestamp_seconds": ("gauge", "Begin of the oldest day of the history."),
    "sfsample_targets": ("gauge", "Processes that were found for the last slice or request."),
    "sfsample_last_slice_timestamp_seconds": ("gauge", "When the last slice was closed; absent before."),
    "sfsample_push_lag_seconds": ("gauge", "How far a backend of --push is behind the history."),
    "sfsample_pushed_slices": ("counter", "Slices that a backend has taken, by this watch or another one."),
    "sfsample_push_dropped_slices": ("counter", "Slices that a backend has not taken and never will."),
    "process_cpu_seconds": ("counter", "CPU time of sfsample."),
    "process_resident_memory_bytes": ("gauge", "Resident memory of sfsample."),
    "process_open_fds": ("gauge", "Open files of sfsample."),
}


class Wanted:
    """A requested profile: what is asked for (None: as the watch does), and what became of it."""

    def __init__(self, seconds: int, mode: str | None = None, rate: float | None = None) -> None:
        self.seconds, self.mode, self.rate = seconds, mode, rate
        self.gone = False  # the client is
        self.ended = threading.Event()
        self.data, self.failure = b"", ""
        self.until_s = time.monotonic() + seconds  # about when it is over


class Door:
    """`is_due`, `serve`, `closed`, `failed` and `targets` are for the loop, the rest for the server."""

    def __init__(
        self, every_s: float, slice_s: float, of_sinks: Sequence[Callable[[], Metrics]] = ()
    ) -> None:
        self.targets = 0
        self._of_sinks = of_sinks
        self._patience_s = 2 * every_s + slice_s + _GRACE_S
        self._due_s = time.monotonic() + self._patience_s  # for the next slice to be closed
        self._last_failure = ""
        self._lock = threading.Lock()
        self._wanted: Wanted | None = None
        self._ending = False
        self._counts: Counter[str] = Counter()
        self._responses: Counter[int] = Counter()
        self._triggers: Counter[str] = Counter()
        self._lost: Counter[str] = Counter()
        self._pauses: Counter[str] = Counter()  # by the end of the line
        self._last_slice_s: float | None = None

    def is_due(self) -> bool:
        """Whether a client waits for a profile."""
        return self._wanted is not None

    def serve(self, record: Callable[[Wanted], bytes]) -> bool:
        """Record the profile that a client waits for; return whether there was one."""
        if (wanted := self._wanted) is None:
            return False
        wanted.until_s = time.monotonic() + wanted.seconds
        self._due_s += wanted.seconds + _GRACE_S
        try:
            if not wanted.gone:
                wanted.data = record(wanted)
                self._counts["sfsample_pulled_profiles"] += not wanted.gone
        except (SfsampleError, OSError, MemoryError, ValueError) as failure:
            wanted.failure = str(failure) or "out of memory"
            self._counts["sfsample_failures"] += 1
        finally:
            self._wanted = None
            wanted.ended.set()
        return True

    def closed(self, stats: Stats) -> None:
        """Count a slice that was recorded and kept."""
        self._counts["sfsample_slices"] += 1
        self._counts["sfsample_samples"] += stats.samples
        self._counts["sfsample_missed_ticks"] += stats.late_ticks
        with self._lock:
            self._lost.update(_lost(stats))
            self._pauses.update(_pauses(stats.pauses))
        self._last_slice_s, self._last_failure = time.time(), ""
        self._due_s = time.monotonic() + self._patience_s

    def triggered(self, name: str) -> None:
        """Count a trigger."""
        with self._lock:
            self._triggers[name] += 1

    def failed(self, what: object) -> None:
        """Count a slice that was lost."""
        self._counts["sfsample_failures"] += 1
        self._last_failure = str(what) or "out of memory"

    def ask(self, wanted: Wanted) -> float:
        """Ask for a profile; where another one is being recorded, return for about how many seconds more."""
        with self._lock:
            if (before := self._wanted) is not None:
                return max(1.0, before.until_s - time.monotonic())
            self._wanted = wanted
        if self._ending:
            self.serve(_refuse)
        return 0.0

    def end(self) -> None:
        """Refuse what is still asked for; the loop has ended.

        It takes no lock: a signal handler that runs here may wait for a thread that waits for it.
        """
        self._ending = True
        self.serve(_refuse)

    def count_response(self, status: int) -> None:
        """Count an answer."""
        with self._lock:
            self._responses[status] += 1

    def why_unhealthy(self) -> str:
        """Return why no slice was closed in time; "" if one was."""
        late_s = time.monotonic() - self._due_s
        if late_s <= 0:
            return ""
        why = self._last_failure or "the loop does not go on"
        return f"no slice was closed for {self._patience_s + late_s:.0f} s: {why}"

    def metrics(self, *, for_file: bool = False) -> str:
        """Return the counts as OpenMetrics text, or in the older format of Prometheus `for_file`s.

        There the metrics of this process have a name of their own, as node_exporter has the same ones.
        """
        with self._lock:
            responses = {f'{{code="{status}"}}': count for status, count in sorted(self._responses.items())}
            triggers = {f'{{condition="{name}"}}': count for name, count in sorted(self._triggers.items())}
            lost = {f'{{reason="{reason}"}}': count for reason, count in self._lost.items()}
            pauses = {end: count / 1e9 if end == "_sum" else count for end, count in self._pauses.items()}
        values: dict[str, object] = {
            **{name: self._counts[name] for name, (kind, _) in _FAMILIES.items() if kind == "counter"},
            "sfsample_http_responses": responses,
            "sfsample_lost": lost,
            "sfsample_stop_seconds": pauses,
            "sfsample_triggers": triggers,
            "sfsample_targets": self.targets,
            "sfsample_last_slice_timestamp_seconds": self._last_slice_s,
            **{name: {} for name in _FAMILIES if name.startswith("sfsample_push")},
            **{name: rows for metrics in self._of_sinks for name, rows in metrics().items()},
            "process_cpu_seconds": time.process_time(),
            "process_resident_memory_bytes": _resident_bytes(),
            "process_open_fds": len(os.listdir("/proc/self/fd")),
        }
        lines = []
        for name, family in _FAMILIES.items():
            shown = f"sfsample_{name}" if for_file and name.startswith("process_") else name
            lines += _lines(shown, *family, values.get(name), for_file=for_file)
        return "\n".join([*lines, "" if for_file else "# EOF\n"])


def _lines(name: str, kind: str, text: str, value: object, *, for_file: bool) -> list[str]:
    by_label = value if isinstance(value, dict) else {} if value is None else {"": value}
    suffix = "_total" if kind == "counter" else ""
    family = f"{name}{suffix}" if for_file else name
    rows = [f"{name}{suffix}{label} {number}" for label, number in by_label.items()]
    return [f"# TYPE {family} {kind}", f"# HELP {family} {text}", *rows]


def _lost(stats: Stats) -> dict[str, int]:
    truncated = stats.samples - stats.stacks[StopReason.OUTERMOST]
    return {"missed tick": stats.late_ticks, "skipped tick": stats.spared_ticks,
            "failed capture": stats.captures[Capture.FAILED], "truncated stack": truncated}  # fmt: skip


def _pauses(pauses: Pauses) -> dict[str, int]:
    """Return the rows of a histogram, in ns."""
    rows = {f'_bucket{{le="{limit_s}"}}': pauses.up_to(round(limit_s * 1e9)) for limit_s in _PAUSES_S}
    return {**rows, '_bucket{le="+Inf"}': pauses.count, "_count": pauses.count, "_sum": pauses.total}


def _resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _refuse(_: Wanted) -> bytes:
    raise SfsampleError("sfsample ends")
