"""The library: `record` and what becomes of a profile, the same path that the command line takes.

Law: composes the layers below and decides nothing else.  Prints nothing, installs no signal handler, and
leaves the target running whatever is raised.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from sfsample.process.capture_running import DEFAULT_STACK_BYTES, check_stack_bytes
from sfsample.process.descendants import Descendants
from sfsample.process.image_cache import ImageCache
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.clock import Clock
from sfsample.recording.options import MAX_PAUSE_S, Mode, RecordOptions, check
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from sfsample.recording.stats import Timers
from sfsample.report.from_profile import name_profile
from sfsample.report.report import Report
from sfsample.report.writers.formats import FORMATS
from sfsample.saved_stacks.store import BadStackStore
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS, SymbolOptions
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES


def record(
    pids: int | Iterable[int],
    duration: float | None = None,
    *,
    rate: float = 99.0,
    mode: Mode = "cpu",
    max_frames: int = MAX_FRAMES,
    stack_bytes: int = DEFAULT_STACK_BYTES,
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS,
    timeline: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
    profile: Profile | None = None,
    bad_stacks: BadStackStore | None = None,
    kernel: bool = False,
    stop: bool = True,
    max_pause: float = MAX_PAUSE_S,
    max_overhead: float | None = None,
    subprocesses: bool = False,
    debug_dirs: Sequence[str] = (),
    tell: Callable[[str], None] = lambda _: None,
    perf_events: bool | None = None,
) -> Profile:
    """Sample one process or several.

    `duration` in seconds (None: until the target ends or `should_stop` is true; that is asked at every tick,
    and at least ten times a second, on the sampling thread), `rate` in samples per second and thread,
    `mode` "cpu" (threads that run at the tick) or "wall" (all), `stack_bytes` copied per thread at most,
    `timeline`: keep when each sample was taken (`Profile.timeline`), `profile`: count into this one, which
    another thread may look at meanwhile, `bad_stacks`: where to keep the incomplete stacks, `kernel`: where
    sleeping threads are in the kernel, too, `stop` False: stop no thread, so those that run are not captured,
    `max_pause` seconds: hold a thread no longer, nor wait so long for it to stop, `max_overhead` (0.01: one
    percent): leave out ticks to stay below this share of the time, `subprocesses`: their descendants too,
    those born meanwhile included, `debug_dirs`: where to look for separate debug files first, which may have
    the only unwind tables, `tell`: called when ticks were missed, at most once a second,
    `perf_events` True: let the kernel's timers take the samples (mode "cpu", no descendants), False: never,
    None: once no processor is free for what we do, if the kernel lets us (not with a `clock`).

    A child of yours must not be asked for its end by `Popen.poll`, `wait` or waitpid(2) meanwhile: they also
    answer that we have stopped it, and Popen takes that for its death.  Use waitid(2) with WEXITED and
    WNOWAIT, or a pidfd.

    Raises TargetError (NoSuchProcess, NotPermitted, UnsupportedTarget), which has `help` lines, and
    ValueError for an argument that makes no sense.
    """
    wanted = [pids] if isinstance(pids, int) else list(dict.fromkeys(pids))
    limits = stop, max_pause, max_overhead, perf_events
    options = RecordOptions(rate, duration, mode, steppers, max_frames, timeline, bad_stacks, kernel, *limits)
    check(options)
    if not wanted:
        raise ValueError("no process to record")
    check_stack_bytes(stack_bytes)

    def work(should: Callable[[], bool]) -> Profile:
        targets: list[LiveProcess] = []
        shared = ImageCache(debug_dirs)
        open_process = partial(LiveProcess, stack_bytes=stack_bytes, attach=not perf_events, shared=shared)
        try:
            for pid in wanted:
                targets.append(open_process(pid))  # noqa: PERF401 - those opened must be closed
            if perf_events:
                from sfsample.recording.perf_sampler import PerfSampler

                sampler = PerfSampler(targets, options, stack_bytes, profile)
                sampler.profile.stats.timers = Timers()
                return sampler.run(should)
            if perf_events is None and mode == "cpu" and stop and clock is None and not subprocesses:
                from sfsample.recording.choose_sampler import Relay

                return Relay(targets, options, stack_bytes, profile, tell=tell).run(should)
            descendants = Descendants(wanted, partial(open_process, attach=False)) if subprocesses else None
            return PtraceSampler(targets, options, clock, profile, tell=tell, descendants=descendants).run(
                should
            )
        finally:
            for target in targets:
                target.close()

    return TracerThread(work, should_stop).run()


def symbolizer(profile: Profile, naming: SymbolOptions = DEFAULT_SYMBOL_OPTIONS) -> Symbolizer:
    """Return what names the places of a profile; `missing_names()` tells afterwards what has no name, and why."""
    return Symbolizer(naming, profile.homes)


def named(profile: Profile, namer: Symbolizer | None = None) -> Report:
    """Return a profile with the names of its places: all that can be known without the process."""
    return name_profile(profile, namer or symbolizer(profile))


def folded(profile: Profile, *, threads: bool = False, namer: Symbolizer | None = None) -> str:
    """Return a profile as folded stacks, with names; `threads`: one root per thread."""
    return render(named(profile, namer), "folded", threads=threads).decode()


def render(report: Report, format_name: str, *, threads: bool = False) -> bytes:
    """Return a report in a format: folded, json, speedscope, firefox, pprof, html or svg."""
    if format_name not in FORMATS:
        raise ValueError(f"no such format: {format_name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[format_name].write(report, threads=threads)
