"""Counts the costs and the losses of a recording, for the summary and for `--stats`."""

import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack, StopReason, found_of
from sfsample.errors import NoSuchProcess, SfsampleError, TargetError

MIN_COVERAGE = 0.9  # coverage of the CPU time; if it is lower, the shares of functions may be wrong
_MAX_PROBLEMS = 1000  # distinct texts; any further texts are counted together
_MAX_SHOWN_PROBLEMS = 5


class Loss(NamedTuple):
    """One kind of loss.  `reason` names the kind in the metrics of `watch --listen`; `text` is for people."""

    reason: str
    number: int
    text: str


def losses(
    *, ticks: int, late_ticks: int, spared_ticks: int, failed_captures: int, samples: int, whole_stacks: int,
    rate_hz: float | None,
) -> list[Loss]:  # fmt: skip
    """Return a `Loss` of every kind, even if its number is 0."""
    taken = max(0, ticks - late_ticks - spared_ticks) / (ticks or 1)
    rate = f"{100 * taken:.0f} % of the rate"
    if rate_hz:
        rate = f"{taken * rate_hz:.1f} Hz instead of {rate_hz:g} Hz"
    truncated = max(0, samples - whole_stacks)
    return [
        Loss("truncated stack", truncated, f"{truncated} of {samples} samples have a truncated stack"),
        Loss("missed tick", late_ticks, f"{late_ticks} of {ticks} ticks missed"),
        Loss("skipped tick", spared_ticks, f"{rate}, to stay below --max-overhead"),
        Loss("failed capture", failed_captures, f"{failed_captures} captures failed"),
    ]  # fmt: skip


def coverage_of(sampled_ns: int, charged_ns: int) -> float | None:
    """Return the share of the CPU time that samples stand for, 0 to 1; None: no CPU time was used."""
    return min(1.0, max(0, sampled_ns) / charged_ns) if charged_ns > 0 else None


def is_low(coverage: float | None, charged_ns: int, shown_ns: float) -> bool:
    """Return True if missing CPU time may make shares wrong; `shown_ns`: time of all samples, sleep too."""
    return coverage is not None and coverage < MIN_COVERAGE and (1 - coverage) * charged_ns > shown_ns / 100


class Pauses:
    """Distribution of durations in ns, with exact count, sum and maximum; percentiles have three digits."""

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
        unit_ns = 10 ** max(0, len(str(pause_ns)) - 3)
        self._counts[pause_ns // unit_ns * unit_ns] += 1

    def percentile(self, percent: float) -> int:
        """Return the pause in ns that `percent` % of the pauses do not exceed; 0: there was no pause."""
        target = self.count * percent / 100
        counted = 0
        for pause_ns in sorted(self._counts):
            counted += self._counts[pause_ns]
            if counted >= target:
                return pause_ns
        return 0

    def up_to(self, limit_ns: int) -> int:
        """Return the number of pauses of at most `limit_ns`."""
        return sum(count for pause_ns, count in self._counts.items() if pause_ns <= limit_ns)

    def as_json(self) -> dict[str, int]:
        """Return the `stop_ns` object of the statistics."""
        points = {f"p{p}": self.percentile(p) for p in (50, 90, 99)}
        return {"count": self.count, **points, "max": self.max, "total": self.total}


@dataclass
class Subprocesses:
    """Counts of the descendants that sfsample found."""

    watched: int = 0
    short_lived: int = 0  # ended before sfsample could open them
    refused: int = 0  # could not be opened


class Stats:
    """The counts of one recording."""

    def __init__(self, rate_hz: float) -> None:
        self.rate_hz = rate_hz
        self.mode: str | None = None  # "cpu" or "wall"
        self.duration_s = 0.0
        self.ticks = 0  # ticks that were due, taken or not
        self.late_ticks = 0  # ticks not taken, because the sampler was late
        self.lacks_priority = False  # the kernel does not permit real-time priority
        self.samples = 0
        self.captures: Counter[Capture] = Counter()
        self.timers_since_s: float | None = None  # time from the start to the first timers; None: no timers
        self.engine_why = ""  # reason for stops or timers
        self.lacks_timers = False  # True: timers would be better, but stops are used
        self.timers_of: str | None = None  # "threads" or "cpus"
        self.timers_refused = False  # True: timers would be better, but the kernel does not permit them
        self.max_stack_bytes = 0  # largest distance between the innermost and the outermost frame
        self.pauses = Pauses()  # times between the request for a stop and the release
        self.held = Pauses()  # pauses, without the time for which the thread waited for a CPU
        self.stacks: Counter[StopReason] = Counter()
        self.frames: Counter[str] = Counter()
        self.eintr_prone_stops = 0
        self.spared_ticks = 0  # ticks not taken, to stay below --max-overhead
        self.waiting_for_cpu = 0  # cpu mode: samples skipped, because the thread waited for a CPU
        self.without_gil = 0  # --gil: samples left out, because the thread did not hold the GIL
        self.cpu_charged_ns = 0  # CPU time of all threads, as the kernel counts it
        self.cpu_sampled_ns = 0  # CPU time that samples stand for, including samples that --gil leaves out
        self.threads = 0  # threads that have samples
        self.brief_waits = 0  # samples left out, because the wait was shorter than --min-wait
        self.holders_refused = 0  # times that sfsample could not read the process of a holder
        self.holders_changed = 0  # times that a holder changed or ended while sfsample captured it
        self.why_idle: tuple[str, str] | None = None  # reason why no thread could run, and a remedy
        self.subprocesses = Subprocesses()
        self.module_paths: list[tuple[str, bool]] = []  # path of each module, and whether it has SFrame
        self.sampler_cpu_s = 0.0
        self.sampler_max_rss_bytes = 0
        self.problems: Counter[str] = Counter()
        self.set_aside: list[str] = []  # problems about processes on which sfsample is stuck
        self.failure: tuple[str, ...] = ()  # failure that ended the recording early, then help lines
        self.ended_by: str = ""  # "duration", "signal", "target", "failure"

    @property
    def coverage(self) -> float | None:
        """The share of the CPU time that samples stand for, 0 to 1; None: no CPU time was used."""
        return coverage_of(self.cpu_sampled_ns, self.cpu_charged_ns)

    @property
    def losses(self) -> list[Loss]:
        """A `Loss` of every kind, even if its number is 0."""
        return losses(
            ticks=self.ticks, late_ticks=self.late_ticks, spared_ticks=self.spared_ticks,
            failed_captures=self.captures[Capture.FAILED], samples=self.samples,
            whole_stacks=self.stacks[StopReason.OUTERMOST], rate_hz=self.rate_hz,
        )  # fmt: skip

    @property
    def taken_ticks(self) -> int:
        """The number of ticks that were neither missed nor skipped."""
        return self.ticks - self.late_ticks - self.spared_ticks

    @property
    def achieved_hz(self) -> float:
        """The number of ticks taken per second."""
        return self.taken_ticks / self.duration_s if self.duration_s > 0 else 0.0

    def end_by(self, loop: Callable[[], str]) -> None:
        """Run `loop`, and note how the loop ended; raise a failure of the loop if there are no samples."""
        try:
            self.ended_by = loop()
        except (TargetError, OSError) as failure:
            if not self.samples:
                raise
            self.end_early(failure)

    def count_cost(self, cpu_at_start_s: float) -> None:
        """Note the CPU time of the calling thread since `cpu_at_start_s` (thread_time), and peak memory."""
        self.sampler_cpu_s = time.thread_time() - cpu_at_start_s
        self.sampler_max_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def end_early(self, failure: Exception) -> None:
        """Note the failure that ended the recording early; the samples so far are the result."""
        what = f"ended early: {failure}"
        self.note(what)
        self.ended_by, self.failure = "failure", (what, *getattr(failure, "help", ()))

    def end_stuck(self, stuck: Exception) -> None:
        """Note that sfsample was stuck until the recording was over; the samples so far are the result."""
        self.ended_by = "signal"
        self.note(f"{stuck}; no samples were taken after that")

    def count_failed(self, why: str, times: int) -> None:
        """Count samples that could not be taken."""
        self.captures[Capture.FAILED] += times
        self.note(f"not captured: {why}", times)

    def note(self, problem: str, times: int = 1) -> None:
        """Count a problem.  As some texts contain addresses, the number of texts has a limit."""
        has_room = problem in self.problems or len(self.problems) < _MAX_PROBLEMS
        self.problems[problem if has_room else "other problems"] += times

    def count_stack(self, stack: Stack, times: int = 1) -> None:
        """Count a stack for `times` samples."""
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
            "captures": {"stopped": 0, "read": 0, "reused": 0, "failed": 0, **_text_keys(self.captures)},
            "stop_ns": self.pauses.as_json(),
            "stacks": {"outermost": 0, "max_frames": 0, **_text_keys(self.stacks)},
            "frames": {"context": 0, "sframe": 0, "eh_frame": 0, **_text_keys(self.frames)},
            "eintr_prone_stops": self.eintr_prone_stops,
            "threads": self.threads,
            "modules": len(self.module_paths),
            "modules_with_sframe": sum(has_sframe for _, has_sframe in self.module_paths),
            "sampler_cpu_s": round(self.sampler_cpu_s, 6),
            "sampler_max_rss_bytes": self.sampler_max_rss_bytes,
            "problems": [text if n == 1 else f"{text} ({n} times)" for text, n in self.problems.items()],
            "achieved_hz": round(self.achieved_hz, 3),
            "spared_ticks": self.spared_ticks,
            "off_processor": self.waiting_for_cpu,
            "without_gil": self.without_gil,
            "cpu_charged_ns": self.cpu_charged_ns,
            "cpu_sampled_ns": self.cpu_sampled_ns,
            "coverage": None if self.coverage is None else round(self.coverage, 4),
            "subprocesses": vars(self.subprocesses).copy(),
            "perf_events": self._perf_events_as_json(),
            "engine": "ptrace" if self.timers_since_s is None else "timers",
            "engine_why": self.engine_why or None,
            "held_ns": self.held.as_json(),
            "mode": self.mode,
            "holders_changed": self.holders_changed,
            "holders_refused": self.holders_refused,
            "brief_waits": self.brief_waits,
        }

    def _perf_events_as_json(self) -> dict[str, Any] | None:
        since_s = self.timers_since_s
        if since_s is None:
            return None
        because = self.engine_why if since_s else None
        return {"since_s": round(since_s, 6), "of": self.timers_of, "because": because}


def _text_keys(counts: Counter[Any]) -> dict[str, int]:
    return {str(key): count for key, count in counts.items()}


def check_result(stats: Stats, pids: Sequence[int]) -> None:
    """Raise SfsampleError if all processes ended too early, all captures failed, or all ticks were missed."""
    check_begun(stats, pids)
    if stats.samples or stats.ended_by == "signal":
        return
    targets = ", ".join(map(str, pids))
    if stats.captures[Capture.FAILED]:
        problems = [text for text, _ in stats.problems.most_common(_MAX_SHOWN_PROBLEMS)]
        raise SfsampleError(f"nothing could be collected: every capture of {targets} failed", *problems)
    if stats.ticks == stats.late_ticks:
        raise SfsampleError(f"nothing could be collected: every tick for {targets} was missed",
                            "the machine is overloaded; try a lower --rate")  # fmt: skip


def check_begun(stats: Stats, pids: Sequence[int]) -> None:
    """Raise NoSuchProcess if every process ended before the first sample."""
    if stats.ended_by == "target" and stats.ticks <= 1 and not stats.samples:
        targets = ", ".join(map(str, pids))
        raise NoSuchProcess(pids[0], f"process has ended before the first sample: {targets}")
