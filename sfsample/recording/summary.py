"""The summary of a recording, for people.

Law: drawn from `Stats` and the words that are handed in; says what was lost before it says what went well.
"""

from collections.abc import Iterator, Sequence

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.recording.stats import Pauses, Stats, Timers

_SHOWN = 5  # problems, unless verbose
_COSTLY = 0.03  # of a processor
_WORTH = 5  # samples, of which none was taken
_WAITED = 2  # times what we held a thread for: say so
_DEEP = 500  # frames: of more, a timer interrupt cannot copy all, nor are those known that have not changed
_ALLOWS_MORE = {
    StopReason.MAX_FRAMES: " (--max-frames allows more)",
    StopReason.STACK_COPY_ENDED: " (--stack-bytes allows more)",
}
# of what no interrupt copies: more than 60 KiB, pages that were never touched, another stack than that of sp
_EVENTS_ALLOW = {
    StopReason.MAX_FRAMES: _ALLOWS_MORE[StopReason.MAX_FRAMES],
    StopReason.STACK_COPY_ENDED: " (--no-perf-events copies all)",
    StopReason.BAD_MEMORY: " (--no-perf-events may copy more)",
}


def summary_lines(
    stats: Stats, mode: str, *, unnamed: Sequence[str] = (), verbose: bool = False
) -> Iterator[str]:
    """Yield lines without newlines.  `unnamed`: where places have no name, and why."""
    yield (
        f"{_count(stats.samples, 'sample')} of {_count(stats.threads, 'thread')} "
        f"in {stats.duration_s:.1f} s: {_count(stats.ticks, 'tick')} "
        f"at {stats.rate_hz:g} Hz, {stats.late_ticks} missed{_achieved(stats)}"
    )
    yield from _losses(stats)
    yield from _subprocesses(stats)
    if not stats.samples and mode == "cpu" and not stats.captures[Capture.FAILED]:
        yield from _nobody(stats)
        yield from _problems(stats, verbose=verbose)
        return
    if stats.captures[Capture.FAILED]:
        yield f"failed    {_count(stats.captures[Capture.FAILED], 'capture')}"
    yield from _pauses(stats)
    yield from _cost(stats, mode)
    yield from _stacks(stats)
    yield from _modules(stats, verbose=verbose)
    yield from unnamed_lines(unnamed, verbose=verbose)
    yield from _problems(stats, verbose=verbose)


def unnamed_lines(unnamed: Sequence[str], *, verbose: bool = False) -> Iterator[str]:
    """Yield where places have no name, and why."""
    shown = unnamed if verbose else unnamed[:_SHOWN]
    yield from (f"unnamed   {text}" for text in shown)
    if len(unnamed) > len(shown):
        yield f"          and {len(unnamed) - len(shown)} more (-v shows all)"


def _nobody(stats: Stats) -> Iterator[str]:
    """Yield why there are no samples, and what would give some."""
    if stats.timers:
        period_ns = round(1e9 / stats.rate_hz)
        yield f"no thread used the {_time(period_ns)} of CPU time that a sample stands for;"
        if stats.cpu_charged_ns > period_ns:
            yield "a higher --rate needs less; threads that live shorter are seen with --no-perf-events"
        else:
            yield "sleeping threads are recorded with: --mode wall, without --perf-events"
        return
    waiting = "had a processor", "those that wait for one"
    did, others = waiting if stats.off_processor else ("ran", "sleeping threads")
    yield f"no thread {did} at any of the {_count(stats.taken_ticks, 'tick')} taken;"
    yield f"{others} are recorded with: --mode wall"
    if stats.cpu_charged_ns > _WORTH * 1e9 / stats.rate_hz:
        yield "threads that run for microseconds at a time are seen with --perf-events"


def _achieved(stats: Stats) -> str:
    """Return the rate that was achieved, where it is not the one asked for."""
    return f" ({stats.achieved_hz:.1f} Hz)" if stats.late_ticks or stats.spared_ticks else ""


def _losses(stats: Stats) -> Iterator[str]:
    """Yield what was left out, and how much of the CPU time that costs."""
    if stats.spared_ticks:
        yield f"spared    {_count(stats.spared_ticks, 'tick')} left out to stay below --max-overhead"
    if stats.off_processor:
        looks = _count(stats.off_processor, "look")
        yield f"waiting   {looks} at threads that wanted a processor and had none"
    lost_ns = stats.cpu_charged_ns - stats.cpu_sampled_ns
    if stats.cpu_charged_ns and abs(lost_ns) > stats.cpu_charged_ns // 100:
        part = _percent(abs(lost_ns), stats.cpu_charged_ns)
        differs = (
            f"no sample stands for {part} of it" if lost_ns > 0 else f"the samples stand for {part} more"
        )
        yield f"CPU time  {stats.cpu_charged_ns / 1e9:.2f} s; {differs}"


def _subprocesses(stats: Stats) -> Iterator[str]:
    counts = stats.subprocesses
    lost = [(counts.short_lived, "ended before a look at them"), (counts.refused, "could not be opened")]
    others = [f"{number} {what}" for number, what in lost if number]
    if counts.watched or others:
        yield "children  " + ", ".join([f"{_count(counts.watched, 'subprocess')} watched", *others])


def _pauses(stats: Stats) -> Iterator[str]:
    if stats.pauses.count:
        yield f"pause     {_points(stats.pauses)} ({_count(stats.pauses.count, 'stop')})"
    pairs = zip(_chosen(stats.pauses), _chosen(stats.held), strict=True)
    if stats.held.count and any(pause > _WAITED * held for pause, held in pairs):
        yield f"          {_points(stats.held)} without their own waits for a processor to stop on"
    if stats.by_events:
        yield "pause     none: copied by the kernel in timer interrupts"
    elif stats.timers is not None:
        yield _timers(stats.timers)
    if stats.eintr_prone_stops:
        stops = _count(stats.eintr_prone_stops, "stop")
        yield f"EINTR     {stops} interrupted a system call that does not begin again by itself (signal(7))"


def _chosen(pauses: Pauses) -> tuple[int, int, int]:
    return pauses.percentile(50), pauses.percentile(99), pauses.max


def _points(pauses: Pauses) -> str:
    p50, p99, longest = map(_time, _chosen(pauses))
    return f"p50 {p50}, p99 {p99}, max {longest}"


def _timers(timers: Timers) -> str:
    taken_over = f"timers    of the kernel took over at {timers.since_s:.1f} s, as {timers.because}"
    return f"{taken_over}; nothing was stopped from then on"


def _cost(stats: Stats, mode: str) -> Iterator[str]:
    """Yield what the sampler took for itself, which on a machine without a processor to spare others lack."""
    if not stats.sampler_cpu_s or not stats.duration_s:
        return
    share = stats.sampler_cpu_s / stats.duration_s
    used = _percent(round(stats.sampler_cpu_s * 1e9), round(stats.duration_s * 1e9))
    deep = sum(stats.frames.values()) > _DEEP * stats.samples
    other = mode == "cpu" and not stats.timers and not stats.subprocesses.watched and not deep
    less = "--perf-events costs less, " if other else ""
    limits = share >= _COSTLY and not stats.spared_ticks
    yield f"cost      {used} of one processor{f' ({less}--max-overhead limits it)' if limits else ''}"


def _stacks(stats: Stats) -> Iterator[str]:
    if not stats.samples:
        return
    allows_more = _EVENTS_ALLOW if stats.timers else _ALLOWS_MORE
    others = [f"{_percent(n, stats.samples)} {reason}{allows_more.get(reason, '')}"
              for reason, n in stats.stacks.most_common() if reason is not StopReason.OUTERMOST]  # fmt: skip
    complete = f"{_percent(stats.stacks[StopReason.OUTERMOST], stats.samples)} reached the outermost frame"
    yield "stacks    " + ", ".join([complete, *others])
    steps = {found: n for found, n in stats.frames.most_common() if found != Found.CONTEXT}
    if steps:
        total = sum(steps.values())
        yield "callers   " + ", ".join(f"{_percent(n, total)} by {found}" for found, n in steps.items())


def _modules(stats: Stats, *, verbose: bool) -> Iterator[str]:
    with_sframe = [path for path, has in stats.module_paths if has]
    without = [path for path, has in stats.module_paths if not has]
    names = ", ".join(path.rpartition("/")[2] for path in with_sframe[:_SHOWN])
    yield f"modules   {len(with_sframe)} with SFrame{f' ({names})' if names else ''}, {len(without)} without"
    if verbose:
        yield from (f"          sframe    {path}" for path in with_sframe)
        yield from (f"          eh_frame  {path}" for path in without)


def _problems(stats: Stats, *, verbose: bool) -> Iterator[str]:
    shown = stats.problems.most_common(None if verbose else _SHOWN)
    for text, count in shown:
        yield f"problem   {text}" + (f" ({count} times)" if count > 1 else "")
    if len(stats.problems) > len(shown):
        yield f"          and {len(stats.problems) - len(shown)} more (-v shows all)"


def _percent(part: int, whole: int) -> str:
    """Never round a loss away: 100 % means all."""
    share = 100 * part / whole
    if share > 99.9 and part < whole:
        return "> 99.9 %"
    return "< 0.1 %" if 0 < share < 0.1 else f"{share:.1f} %".replace("100.0", "100").replace(".0 %", " %")


def _count(number: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{number} {noun}" + ("" if number == 1 else plural)


def _time(ns: int) -> str:
    return f"{ns / 1000:.0f} µs" if ns < 10_000_000 else f"{ns / 1e6:.0f} ms"
