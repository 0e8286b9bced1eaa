"""The library's `dump`, the same path that the command line takes: open, look, name, judge.

It prints nothing and leaves the targets running.  The diagnosis is imported while the second look is awaited,
where it costs no time.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from sfsample.dumping.collect import Dumper
from sfsample.dumping.model import ProcessDump
from sfsample.errors import AlreadyTraced, NoReturn, NoSuchProcess, NoThread, TargetError
from sfsample.process.capture_running import DEFAULT_STACK_BYTES, check_stack_bytes
from sfsample.process.image_cache import ImageCache
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS, SymbolOptions
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES, Unwinder

if TYPE_CHECKING:
    from sfsample.dumping.diagnose.verdict import Verdict
    from sfsample.symbolize.symbolizer import Symbolizer

Meanwhile = Callable[[list[ProcessDump]], object]

INTERVAL_S = 0.1
_MAX_SLEEP_S = 0.05  # between two questions whether to stop


class DumpOptions(NamedTuple):
    """How to dump: `looks` times, `interval_s` apart."""

    looks: int = 1
    interval_s: float = INTERVAL_S
    max_frames: int = MAX_FRAMES
    stack_bytes: int = DEFAULT_STACK_BYTES
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS
    stop: bool = True  # threads that run may be stopped
    consistent: bool = False  # all threads at one instant
    debug_dirs: Sequence[str] = ()  # searched for debug files before the system's
    python: bool = True  # Python frames too
    with_locals: bool = False  # short texts of their arguments and locals


DEFAULT_OPTIONS = DumpOptions()


def dump(
    pid: int,
    *,
    looks: int = 1,
    interval: float = INTERVAL_S,
    max_frames: int = MAX_FRAMES,
    stack_bytes: int = DEFAULT_STACK_BYTES,
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS,
) -> ProcessDump:
    """Capture each thread of a process, `looks` times, `interval` seconds apart.  Raises as `record` does."""
    dumps, failures = dump_all((pid,), DumpOptions(looks, interval, max_frames, stack_bytes, steppers))
    if failures:
        raise failures[0]
    return dumps[0]


def dump_all(
    pids: Iterable[int],
    how: DumpOptions,
    meanwhile: Meanwhile = lambda _dumps: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> tuple[list[ProcessDump], list[TargetError]]:
    """Dump several processes; the failure of one does not keep the others from being dumped.

    `meanwhile` is called with the dumps of the first look while the second is awaited.  Once `should_stop` is
    true, there is no further look, and threads whose turn was still to come are shown without a stack.
    """
    check_stack_bytes(how.stack_bytes)
    run = _Run(how)
    try:
        return TracerThread(lambda stop: run.run(pids, meanwhile, stop), should_stop).run()
    except NoReturn:
        if not run.has_begun:
            raise
        with suppress(NoThread):
            return TracerThread(lambda _: run.results(), lambda: True).run()
        return run.results()


class _Run:
    """One dump of several processes."""

    def __init__(self, how: DumpOptions) -> None:
        self._how = how
        self._dumpers: list[Dumper] = []
        self._failures: list[TargetError] = []

    @property
    def has_begun(self) -> bool:
        """Whether a process is open, of which threads may have been captured."""
        return bool(self._dumpers)

    def run(
        self, pids: Iterable[int], meanwhile: Meanwhile, should_stop: Callable[[], bool]
    ) -> tuple[list[ProcessDump], list[TargetError]]:
        """Open, look, and return the results; the processes are closed then."""
        image_cache = ImageCache(self._how.debug_dirs)
        try:
            for pid in pids:
                try:
                    self._dumpers.append(_open(pid, self._how, image_cache))
                except TargetError as failure:
                    self._failures.append(failure)
            self._look(meanwhile, should_stop)
            return self.results()
        finally:
            for dumper in self._dumpers:
                dumper.process.close()

    def results(self) -> tuple[list[ProcessDump], list[TargetError]]:
        """Return what was collected so far, and the failures."""
        dumps = self._dumps()
        ended = (dump.pid for dump in dumps if not dump.threads)
        self._failures += [NoSuchProcess(pid, f"process has ended: {pid}") for pid in ended]
        return [dump for dump in dumps if dump.threads], self._failures

    def _dumps(self) -> list[ProcessDump]:
        return [dumper.result() for dumper in self._dumpers]

    def _look(self, meanwhile: Meanwhile, should_stop: Callable[[], bool]) -> None:
        for number in range(self._how.looks):
            if number:
                rested = time.monotonic() + self._how.interval_s
                if number == 1:
                    meanwhile(self._dumps())
                while not should_stop() and (left := rested - time.monotonic()) > 0:
                    time.sleep(min(left, _MAX_SLEEP_S))
                if should_stop():
                    return
            for dumper in tuple(self._dumpers):
                self._look_at(dumper, should_stop)

    def _look_at(self, dumper: Dumper, should_stop: Callable[[], bool]) -> None:
        try:
            dumper.look(should_stop)
        except TargetError as failure:
            self._failures.append(failure)
            self._dumpers.remove(dumper)
            dumper.process.close()


def _open(pid: int, how: DumpOptions, image_cache: ImageCache) -> Dumper:
    """Open a process; one that a debugger holds can be read, and the debugger may detach meanwhile."""
    try:
        process = LiveProcess(pid, how.stack_bytes, attach=how.stop, image_cache=image_cache)
    except AlreadyTraced:
        process = LiveProcess(pid, how.stack_bytes, attach=False, image_cache=image_cache)
    unwinder = Unwinder(process.modules, steppers=how.steppers, max_frames=how.max_frames)
    consistent = how.consistent and how.stop
    return Dumper(
        process, unwinder, stop=how.stop, consistent=consistent, python=how.python,
        with_locals=how.with_locals,
    )  # fmt: skip


class Examiner:
    """Names every frame, and finds out which thread waits for which.  It does not name a place twice."""

    def __init__(self, options: SymbolOptions = DEFAULT_SYMBOL_OPTIONS) -> None:
        self._options = options
        self._symbolizer: Symbolizer | None = None

    def give_up(self, why: str) -> None:
        """Look up no name from now on."""
        if self._symbolizer is not None:
            self._symbolizer.give_up(why)

    def __call__(self, dumps: Sequence[ProcessDump]) -> "Verdict":
        """Examine processes, the same ones at each call."""
        from sfsample.dumping.diagnose.named_thread import name_threads
        from sfsample.dumping.diagnose.verdict import judge
        from sfsample.symbolize.symbolizer import Symbolizer

        if self._symbolizer is None:
            roots = {dump.pid: dump.root for dump in dumps if dump.root is not None}
            self._symbolizer = Symbolizer(self._options, roots)
        return judge([(dump, name_threads(dump, self._symbolizer.frames)) for dump in dumps])

    def missing_names(self) -> list[str]:
        """Return where frames have no name, and why; and what could not be read for names."""
        found = self._symbolizer
        return [] if found is None else [*map(str, found.missing_names()), *found.problems]
