"""Describes a recording in a few lines of text: its losses first, then its costs and its results."""

from collections.abc import Iterator, Sequence
from math import sqrt

from sfsample.core.quantities import brief_time, counted
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.recording.stats import Stats, is_low

_MAX_LINES = 5  # lines of one kind, unless verbose
_MANY_LATE = 0.1  # share of the ticks; if sfsample missed more, a line names a permission that helps
_CHANCE = 2  # standard deviations of the number of samples (timers of CPUs); a larger loss is not by chance
_HIGH_COST = 0.03  # share of one CPU; with a higher cost, the summary names the flag that limits the cost
_NOTABLE_SAMPLES = 5  # samples; if more were due but none was taken, a line advises a flag
_NOTABLE_CPU_NS = 5_000_000  # CPU time; less would be printed as 0.00 s
_HINTS = {
    StopReason.MAX_FRAMES: " (--max-frames allows more)",
    StopReason.STACK_COPY_ENDED: " (--stack-bytes allows more)",
}
# A timer interrupt copies at most 60 KiB, only pages in memory, and only the stack that sp points to.
_TIMER_HINTS = {
    StopReason.MAX_FRAMES: _HINTS[StopReason.MAX_FRAMES],
    StopReason.STACK_COPY_ENDED: " (--no-perf-events copies all)",
    StopReason.BAD_MEMORY: " (--no-perf-events may copy more)",
}
_REFUSED_TIMERS = (
    "          timers of the CPUs would see threads that end before they are sampled: run sfsample",
    "          as root, with CAP_PERFMON, or with sysctl kernel.perf_event_paranoid=0",
)


def summary_lines(
    stats: Stats, mode: str, *, missing_names: Sequence[str] = (), verbose: bool = False
) -> Iterator[str]:
    """Yield lines without newlines.  `missing_names` has places without a name, each with the reason."""
    low = _is_low(stats)
    if low:
        yield from (f"{line}: shares may be wrong" for line in _coverage(stats))
    if low and stats.timers_refused:
        yield from _REFUSED_TIMERS
    threads = f" of {counted(stats.threads, 'thread')}" if stats.samples else ""
    rate = f"{counted(stats.ticks, 'tick')} at {stats.rate_hz:g} Hz, {stats.late_ticks} missed"
    if stats.spared_ticks:
        rate = f"{stats.achieved_hz:.1f} Hz instead of {stats.rate_hz:g} Hz, to stay below --max-overhead"
    elif stats.late_ticks:
        rate += f" ({stats.achieved_hz:.1f} Hz)"
    yield f"{counted(stats.samples, 'sample')}{threads} in {stats.duration_s:.1f} s: {rate}"
    if stats.lacks_priority and stats.late_ticks > _MANY_LATE * stats.ticks:
        yield "missed    to miss fewer ticks, run sfsample as root or with CAP_SYS_NICE"
    if stats.ended_by == "target":
        yield "ended     with the target"
    if stats.waiting_for_cpu:
        yield f"skipped   {counted(stats.waiting_for_cpu, 'sample')}: waiting for a CPU"
    if stats.without_gil:
        yield f"left out  {counted(stats.without_gil, 'sample')} of threads without the GIL"
    if stats.brief_waits:
        yield f"skipped   {counted(stats.brief_waits, 'sample')}: waits shorter than --min-wait"
    if not low:
        yield from _coverage(stats)
    yield from _subprocesses(stats)
    if not stats.samples and (mode == "cpu" or stats.without_gil) and not stats.captures[Capture.FAILED]:
        yield from no_sample_lines(stats)
        yield from _problems(stats, verbose=verbose)
        return
    if stats.captures[Capture.FAILED]:
        yield f"failed    {counted(stats.captures[Capture.FAILED], 'capture')}"
    yield from _pauses(stats)
    yield from _cost(stats)
    yield from _stacks(stats)
    if verbose:
        with_sframe = [path for path, has_sframe in stats.module_paths if has_sframe]
        number = len(with_sframe)
        yield f"modules   {number} with SFrame, {len(stats.module_paths) - number} without"
        yield from (f"          sframe    {path}" for path in with_sframe)
    yield from missing_name_lines(missing_names, verbose=verbose)
    yield from _problems(stats, verbose=verbose)


def missing_name_lines(missing_names: Sequence[str], *, verbose: bool = False) -> Iterator[str]:
    """Yield the places without a name, each with the reason."""
    shown = missing_names if verbose else missing_names[:_MAX_LINES]
    yield from (f"unnamed   {text}" for text in shown)
    yield from _more(len(missing_names) - len(shown))


def no_sample_lines(stats: Stats) -> Iterator[str]:
    """Yield the reason why there are no samples, and the flags that would give samples."""
    cause, remedy = stats.why_idle or ("idle", "to record sleeping threads: --mode wall")
    if stats.timers_since_s is not None:
        period_ns = round(1e9 / stats.rate_hz)
        if stats.cpu_charged_ns > period_ns:
            yield f"the timers took no sample in {brief_time(stats.cpu_charged_ns)} of CPU time"
            yield "with a higher --rate, a thread needs less CPU time for a sample"
            yield "--no-perf-events can also sample threads with less CPU time"
        else:
            yield f"no thread used {brief_time(period_ns)} of CPU time, which gives one sample: {cause}"
            yield f"{remedy}{', without --perf-events' * (not stats.timers_since_s and 'wall' in remedy)}"
        return
    if stats.without_gil:
        yield f"no thread held the GIL in any of {counted(stats.without_gil, 'sample')}"
        return
    ticks = f"at any of the {counted(stats.taken_ticks, 'tick')} taken"
    brief = stats.cpu_charged_ns > _NOTABLE_SAMPLES * 1e9 / stats.rate_hz
    if stats.waiting_for_cpu and not stats.why_idle:
        yield f"no thread was on a CPU {ticks}"
        yield "to record threads that wait for a CPU: --mode wall"
    else:
        yield f"no thread ran {ticks}{'' if brief else f': {cause}'}"
        yield remedy
    if brief:
        yield "to record threads that run for microseconds at a time: --perf-events"


def _is_low(stats: Stats) -> bool:
    is_notable, shown_ns = any(_coverage(stats)), stats.samples * 1e9 / stats.rate_hz
    return shown_ns > 0 and is_notable and is_low(stats.coverage, stats.cpu_charged_ns, shown_ns)


def _coverage(stats: Stats) -> Iterator[str]:
    """Yield the coverage of the CPU time if it is incomplete, and not by chance."""
    lost_ns = stats.cpu_charged_ns - stats.cpu_sampled_ns
    by_chance_ns = _CHANCE * sqrt(stats.samples) * 1e9 / stats.rate_hz if stats.timers_of == "cpus" else 0
    notable_ns = max(stats.cpu_charged_ns // 100, by_chance_ns)
    if stats.cpu_charged_ns >= _NOTABLE_CPU_NS and abs(lost_ns) > notable_ns:
        covered = _percent(stats.cpu_sampled_ns, stats.cpu_charged_ns)
        yield f"coverage  {covered} of {stats.cpu_charged_ns / 1e9:.2f} s of CPU time"


def _subprocesses(stats: Stats) -> Iterator[str]:
    counts = stats.subprocesses
    lost = {"ended before they could be opened": counts.short_lived, "could not be opened": counts.refused}
    losses = [f"{number} {what}" for what, number in lost.items() if number]
    if counts.watched or losses:
        yield "children  " + ", ".join([f"{counted(counts.watched, 'subprocess')} followed", *losses])


def _pauses(stats: Stats) -> Iterator[str]:
    pauses = stats.held if stats.held.count else stats.pauses
    if pauses.count:
        p50, p99, longest = map(brief_time, (pauses.percentile(50), pauses.percentile(99), pauses.max))
        stops = counted(stats.pauses.count, "stop")
        yield f"pause     p50 {p50}, p99 {p99}, max {longest} ({stops})"
    if stats.timers_since_s == 0:
        yield "pause     none: the kernel copied the stacks in timer interrupts"
    elif stats.timers_since_s is not None:
        since = f"from {stats.timers_since_s:.1f} s on, because {stats.engine_why}"
        yield f"timers    kernel timers sampled {since}; they stop no thread"
    elif stats.lacks_timers:
        yield f"timers    kernel timers not used: {stats.engine_why}"
        if stats.timers_refused and not _is_low(stats):
            yield from _REFUSED_TIMERS
    if stats.eintr_prone_stops:
        stops = counted(stats.eintr_prone_stops, "stop")
        yield f"EINTR     {stops} interrupted a system call that does not restart by itself (signal(7))"


def _cost(stats: Stats) -> Iterator[str]:
    """Yield the CPU time of sfsample, which the target loses if no CPU is free."""
    if not stats.sampler_cpu_s or not stats.duration_s:
        return
    share = stats.sampler_cpu_s / stats.duration_s
    percent = _percent(round(stats.sampler_cpu_s * 1e9), round(stats.duration_s * 1e9))
    hint = " (--max-overhead limits it)" if share >= _HIGH_COST and not stats.spared_ticks else ""
    yield f"cost      {percent} of one CPU{hint}"


def _stacks(stats: Stats) -> Iterator[str]:
    if not stats.samples:
        return
    hints = _HINTS if stats.timers_since_s is None else _TIMER_HINTS
    complete = f"{_percent(stats.stacks[StopReason.OUTERMOST], stats.samples)} reached the outermost frame"
    incomplete = [
        f"{_percent(count, stats.samples)} {reason}{hints.get(reason, '')}"
        for reason, count in stats.stacks.most_common()
        if reason is not StopReason.OUTERMOST
    ]
    yield "stacks    " + ", ".join([complete, *incomplete])
    if any(text.startswith(StopReason.BAD_PC) and "/_greenlet." in text for text in stats.problems):
        yield "          bad_pc in greenlet: the frames of the running greenlet are complete; outside them"
        yield "          the C stack belongs to another greenlet (--python only shows complete stacks)"
    steps = {found: count for found, count in stats.frames.most_common() if found != Found.CONTEXT}
    if steps:
        total = sum(steps.values())
        shares = (f"{_percent(count, total)} by {found}" for found, count in steps.items())
        yield "callers   " + ", ".join(shares)


def _problems(stats: Stats, *, verbose: bool) -> Iterator[str]:
    shown = stats.problems.most_common(None if verbose else _MAX_LINES)
    for text, count in shown:
        yield f"problem   {text}" + (f" ({count} times)" if count > 1 else "")
    yield from _more(len(stats.problems) - len(shown))


def _more(count: int) -> Iterator[str]:
    if count:
        yield f"          and {count} more (-v shows all)"


def _percent(part: int, whole: int) -> str:
    """Return a share as text; a loss is never rounded away, so 100 % means all."""
    share = 100 * part / whole
    if share > 99.9 and part < whole:
        return "> 99.9 %"
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %".replace("100.0", "100").replace(".0 %", " %")
