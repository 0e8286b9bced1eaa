"""What a recording cost and what it lost; the summary and `--stats` are drawn from it.

Law: counts and keeps; prints nothing, reads no clock.
"""

from collections import Counter
from typing import Any, NamedTuple

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack, StopReason, found_of

_MOST_PROBLEMS = 1000


class Pauses:
    """Distribution of pauses in ns: exact count, sum and maximum, percentiles to three digits."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = 0
        self.total = 0
        self.max = 0

    def add(self, pause_ns: int) -> None:
        """Count one pause."""
        self.count += 1
        self.total += pause_ns
        self.max = max(self.max, pause_ns)
        grain = 10 ** max(0, len(str(pause_ns)) - 3)
        self._counts[pause_ns // grain * grain] += 1

    def percentile(self, percent: float) -> int:
        """Return the pause that `percent` of all do not exceed; 0 when there was none."""
        wanted = self.count * percent / 100
        seen = 0
        for value in sorted(self._counts):
            seen += self._counts[value]
            if seen >= wanted:
                return value
        return 0

    def as_json(self) -> dict[str, int]:
        """Return the `stop_ns` object of the statistics."""
        points = {f"p{p}": self.percentile(p) for p in (50, 90, 99)}
        return {"count": self.count, **points, "max": self.max, "total": self.total}


class Subprocesses:
    """What became of the descendants that were seen."""

    def __init__(self) -> None:
        self.watched = 0
        self.short_lived = 0  # ended before anything could be known of them
        self.refused = 0

    def as_json(self) -> dict[str, int]:
        """Return the `subprocesses` object of the statistics."""
        return {"watched": self.watched, "short_lived": self.short_lived, "refused": self.refused}


class Timers(NamedTuple):
    """From when on the kernel's timers took the samples, and why not from the beginning ('': they did)."""

    since_s: float = 0.0
    because: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the `perf_events` object of the statistics."""
        return {"since_s": round(self.since_s, 6), "because": self.because or None,
                "until_s": None, "why_no_longer": None}  # fmt: skip


class Stats:
    """What a recording cost and what it lost; the summary and `--stats` are drawn from it."""

    def __init__(self, rate_hz: float) -> None:
        self.rate_hz = rate_hz
        self.duration_s = 0.0
        self.ticks = 0  # instants that were due, taken or not
        self.late_ticks = 0  # of them, those not taken because the sampler was late
        self.samples = 0
        self.captures: Counter[Capture] = Counter()
        self.timers: Timers | None = None  # of the kernel, which took samples
        self.engine_why = ""  # stops or timers: why these
        self.max_stack_bytes = 0  # from the innermost frame of a stack to the outermost
        self.pauses = Pauses()
        self.held = Pauses()  # the same, less what a thread waited for a processor on which to stop
        self.stacks: Counter[StopReason] = Counter()
        self.frames: Counter[str] = Counter()
        self.eintr_prone_stops = 0
        self.spared_ticks = 0  # not taken, to stay below the limit of overhead
        self.off_processor = 0  # in cpu mode: runnable threads that turned out not to have a processor
        self.cpu_charged_ns = 0  # CPU time of all threads, as the kernel counts it
        self.cpu_sampled_ns = 0  # what of it the samples stand for
        self.threads = 0  # of which there are samples
        self.subprocesses = Subprocesses()
        self.module_paths: list[tuple[str, bool]] = []  # and whether it carries SFrame
        self.sampler_cpu_s = 0.0
        self.sampler_max_rss_bytes = 0
        self.problems: Counter[str] = Counter()
        self.failure: tuple[str, ...] = ()  # that ended it: what, and what to do
        self.ended_by: str = ""  # "duration", "signal", "target", "failure"

    @property
    def by_events(self) -> bool:
        """Whether the kernel's timers took all samples."""
        return self.timers == Timers()

    def choose_timers(self, timers: Timers, why: str) -> None:
        """Note that the kernel's timers take the samples from now on, and why."""
        self.timers, self.engine_why = timers, why

    @property
    def taken_ticks(self) -> int:
        """The ticks that were neither missed nor left out."""
        return self.ticks - self.late_ticks - self.spared_ticks

    @property
    def achieved_hz(self) -> float:
        """The ticks that were taken, per second."""
        return self.taken_ticks / self.duration_s if self.duration_s > 0 else 0.0

    def end_early(self, failure: Exception) -> None:
        """Note what has ended the recording, which is a result all the same."""
        what = f"ended early: {failure}"
        self.note(what)
        self.ended_by, self.failure = "failure", (what, *getattr(failure, "help", ()))

    def note(self, problem: str, times: int = 1) -> None:
        """Count a problem; of very many different ones (addresses, say) the later ones together."""
        known = problem in self.problems or len(self.problems) < _MOST_PROBLEMS
        self.problems[problem if known else "other problems"] += times

    def count_stack(self, stack: Stack, times: int = 1) -> None:
        """Count the result of a walk, for as many samples as it stands for."""
        self.samples += times
        self.stacks[stack.stop_reason] += times
        if stack.frames:
            self.max_stack_bytes = max(self.max_stack_bytes, abs(stack.frames[-1].sp - stack.frames[0].sp))
        for found, count in Counter(map(found_of, stack.frames)).items():
            self.frames[found] += count * times

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--stats` writes."""
        return {
            "schema": "sfsample.stats/1",
            "duration_s": round(self.duration_s, 6),
            "rate_hz": self.rate_hz,
            "ticks": self.ticks,
            "late_ticks": self.late_ticks,
            "samples": self.samples,
            "captures": {"stopped": 0, "read": 0, "reused": 0, "failed": 0, **_plain(self.captures)},
            "stop_ns": self.pauses.as_json(),
            "stacks": {"outermost": 0, "max_frames": 0, **_plain(self.stacks)},
            "frames": {"context": 0, "sframe": 0, "eh_frame": 0, **_plain(self.frames)},
            "eintr_prone_stops": self.eintr_prone_stops,
            "threads": self.threads,
            "modules": len(self.module_paths),
            "modules_with_sframe": sum(has for _, has in self.module_paths),
            "sampler_cpu_s": round(self.sampler_cpu_s, 6),
            "sampler_max_rss_bytes": self.sampler_max_rss_bytes,
            "problems": [text if n == 1 else f"{text} ({n} times)" for text, n in self.problems.items()],
            "achieved_hz": round(self.achieved_hz, 3),
            "spared_ticks": self.spared_ticks,
            "off_processor": self.off_processor,
            "cpu_charged_ns": self.cpu_charged_ns,
            "cpu_sampled_ns": self.cpu_sampled_ns,
            "subprocesses": self.subprocesses.as_json(),
            "perf_events": self.timers.as_json() if self.timers else None,
            "engine": "timers" if self.timers else "ptrace",
            "engine_why": self.engine_why or None,
            "held_ns": self.held.as_json(),
        }


def _plain(counts: Counter[Any]) -> dict[str, int]:
    return {str(key): count for key, count in counts.items()}
