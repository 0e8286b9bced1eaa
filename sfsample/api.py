"""Records, names and renders profiles, for Python programs and for the command line.

The library prints nothing and installs no signal handler.  If a function raises, the target keeps running.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, overload

from sfsample import __version__
from sfsample.core.budget import INSTRUCTIONS
from sfsample.errors import NoReturn, NoThread, ReadFailed, TargetError
from sfsample.process.descendants import Descendants, why_no_samples
from sfsample.process.image_cache import ImageCache
from sfsample.process.labels import identify
from sfsample.process.process import open_process
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.choose_sampler import choose_sampler
from sfsample.recording.options import DEFAULT_OPTIONS, RecordOptions
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import Clock
from sfsample.report.formats import FORMATS
from sfsample.report.naming import name_profile
from sfsample.report.report import Report
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS, SymbolOptions
from sfsample.symbolize.symbolizer import Symbolizer

if TYPE_CHECKING:
    from sfsample.dumping.diagnose.verdict import Verdict
    from sfsample.dumping.model import ProcessDump

_MAX_IDLE_S = 1.0  # seconds without CPU time, after which an overdue sampling thread counts as stuck


def record(
    pids: int | Iterable[int], duration: float | None = None, options: RecordOptions = DEFAULT_OPTIONS, *,
    should_stop: Callable[[], bool] | None = None, clock: Clock | None = None,
    profile: Profile | None = None, tell: Callable[[str], None] | None = None,
    all_of: bool = True, images: ImageCache | None = None,
) -> Profile:  # fmt: skip
    """Sample one process or several.

    `duration`: seconds; None: until the target ends or `should_stop` returns True.  The sampling thread calls
    `should_stop` at every tick, and at least ten times a second.  While the sampling thread is stuck in a
    system call on the target, the calling thread calls `should_stop`.  `profile`: receives the samples;
    another thread may read it during the recording.  `tell`: called with a line of text after missed ticks,
    at most once a second.  `all_of` False: sample the other processes if one process cannot be sampled.
    `images`: files and processes that earlier recordings have opened; this recording adds its own.

    If the target is a child of the calling program, do not call `Popen.poll`, `wait` or waitpid(2) for the
    child during the recording.  Popen would take a stop by sfsample for the child's end.  Use waitid(2) with
    WEXITED and WNOWAIT, or a pidfd.

    Raises TargetError (NoSuchProcess, NotPermitted, UnsupportedTarget) and NoReturn, each with `help` lines,
    and ValueError for an impossible argument.
    """
    wanted = _check(pids, duration)
    counts = profile or Profile(options.rate, timeline=options.timeline)
    counts.stats.mode, counts.labels = options.mode, dict(options.labels)
    opened = images or ImageCache()
    began_s: float | None = None  # time of the first tick (time.monotonic)

    def work(stop: Callable[[], bool]) -> None:
        nonlocal began_s
        open_any = partial(open_process, stack_bytes=options.stack_bytes, images=opened)
        finder = Descendants(wanted, partial(open_any, attach=False)) if options.subprocesses else None
        processes = Processes((), finder)
        try:
            processes.open_named(
                wanted, partial(open_any, attach=not options.perf_events), counts.stats,
                all_of=all_of and began_s is None,
            )  # fmt: skip
            _identify(counts, processes, opened, environ=options.environ)
            start, began_s = began_s, began_s or time.monotonic()
            recording = Recording(processes, options, counts, duration, start, tell or str, opened)
            INSTRUCTIONS.begin()
            choose_sampler(recording, clock).run(stop)
            # labels again: a program that had just started may have published its labels meanwhile
            _identify(counts, processes, opened, environ=options.environ)
            processes.leave_open(images)
        finally:
            INSTRUCTIONS.begin(float("inf"))
            processes.close(counts.stats)

    def should_end() -> bool:
        """Return True if a stop is wanted, or if the sampler is stuck at the end of `duration`."""
        is_late = began_s is not None and time.monotonic() > began_s + (duration or float("inf"))
        return (should_stop is not None and should_stop()) or (is_late and thread.idle_s > _MAX_IDLE_S)

    def may_leave(pid: int | None) -> bool:
        """Return True if other processes can be recorded without `pid`, on which the sampler is stuck."""
        return pid is not None and not {*left, pid}.issuperset(wanted)

    begin_s, left = time.monotonic(), set[int | None]()
    while True:
        thread = TracerThread(work, should_end, may_leave)
        try:
            thread.run()
        except NoReturn as stuck:
            counts.leave(thread.cpu_ns / 1e9)
            if not should_end() and not stuck.holds_others and may_leave(stuck.pid):
                left.add(stuck.pid)
                continue
            if not counts.stats.samples:
                raise
            counts.stats.duration_s = time.monotonic() - begin_s
            (counts.stats.end_stuck if should_end() else counts.stats.end_early)(stuck)
        except (TargetError, NoThread) as failure:
            if began_s is None or not counts.stats.samples:
                raise
            counts.stats.end_early(failure)
        if not counts.stats.samples and not options.subprocesses:
            counts.stats.why_idle = why_no_samples(wanted)
        return counts


def _check(pids: int | Iterable[int], duration: float | None) -> list[int]:
    """Return the process ids without duplicates.  Raises ValueError for an impossible argument."""
    wanted = [pids] if isinstance(pids, int) else list(dict.fromkeys(pids))
    if not wanted:
        raise ValueError("no process to record")
    if duration is not None and not duration > 0:
        raise ValueError(f"duration must be positive, not {duration}")
    return wanted


def _identify(profile: Profile, processes: Processes, images: ImageCache, *, environ: bool) -> None:
    """Store the labels of each process, and facts about its program, in the profile."""
    for process in processes.named:
        try:
            profile.identify(process.pid, identify(process, images, environ=environ))
        except ReadFailed as failure:
            profile.stats.note(f"labels are missing: {failure}")


def symbolizer(profile: Profile, naming: SymbolOptions = DEFAULT_SYMBOL_OPTIONS) -> Symbolizer:
    """Return the symbolizer of a profile; after use, its `missing_names()` lists places without a name."""
    return Symbolizer(naming, profile.roots)


@overload
def named(profile: Profile, namer: Symbolizer | None = None) -> Report: ...
@overload
def named(profile: "ProcessDump") -> "Verdict": ...
def named(profile: "Profile | ProcessDump", namer: Symbolizer | None = None) -> "Report | Verdict":
    """Return the report of a profile (its stacks with names), or the verdict on a dump.

    The process may have ended.  A verdict has `findings` (sentences, the gravest first), `processes`
    (the dump and its threads with names), `waits` (what each thread waits for) and `document` (the JSON of
    `sfsample dump --json`).
    """
    if not isinstance(profile, Profile):
        from sfsample.dumping.run import Examiner  # a module that recordings do not need

        return Examiner()([profile])
    report = name_profile(profile, namer or symbolizer(profile))
    return report._replace(stats=report.stats.having(recorder=f"sfsample {__version__}"))


def folded(profile: Profile, *, threads: bool = False, namer: Symbolizer | None = None) -> str:
    """Return a profile as folded stacks with names; `threads`: the first frame is the thread."""
    return render(named(profile, namer), "folded", threads=threads).decode()


def render(report: Report, format_name: str, *, threads: bool = False) -> bytes:
    """Return the bytes of a report in a format: folded, json, speedscope, firefox, pprof, html or svg."""
    if format_name not in FORMATS:
        raise ValueError(f"no such format: {format_name!r}; there are {', '.join(FORMATS)}")
    return FORMATS[format_name].write(report, threads=threads)
