"""Dumps processes for the library and the command line: opens, looks, names, judges.  Prints nothing."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sfsample.core.python_view import PythonView
from sfsample.dumping.collect import ASKED, STUCK, TIME_OVER, Dumper
from sfsample.dumping.model import ProcessDump
from sfsample.dumping.options import DEFAULT_DUMP_OPTIONS, DumpOptions
from sfsample.errors import (
    AlreadyTraced,
    NoReturn,
    NoSuchProcess,
    NoThread,
    ReadFailed,
    SfsampleError,
    TargetError,
)
from sfsample.process.image_cache import ImageCache
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import stat_of
from sfsample.process.tracer_thread import TracerThread
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS, SymbolOptions
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import Unwinder

if TYPE_CHECKING:
    from sfsample.dumping.diagnose.verdict import Verdict
    from sfsample.symbolize.symbolizer import Symbolizer

Meanwhile = Callable[[list[ProcessDump]], object]
Dumps = tuple[list[ProcessDump], list[SfsampleError]]
_T = TypeVar("_T")

_MAX_FOLLOWED = 8  # largest number of awaited descendants to capture
_MAX_SLEEP_S = 0.05  # seconds between two calls of `should_stop`


class Dump(ProcessDump):
    """The result of `dump`: the process, with a verdict.  The verdict reads files to find names."""

    __slots__ = ()

    @property
    def verdict(self) -> "Verdict":
        """The findings and the names, as `sfsample.named(dump)` returns them."""
        return Examiner()([self])

    @property
    def document(self) -> dict[str, Any]:
        """The document that `sfsample dump --json` writes: functions, waits, the verdict."""
        return self.verdict.document


def dump(
    pid: int,
    *,
    looks: int = DEFAULT_DUMP_OPTIONS.looks,
    interval: float = DEFAULT_DUMP_OPTIONS.interval,
    max_frames: int = DEFAULT_DUMP_OPTIONS.max_frames,
    stack_bytes: int = DEFAULT_DUMP_OPTIONS.stack_bytes,
    steppers: Sequence[str | Stepper] = DEFAULT_DUMP_OPTIONS.steppers,
) -> Dump:
    """Capture each thread of a process, `looks` times, `interval` seconds apart.  Raises as `record` does."""
    options = DumpOptions(
        looks=looks, interval=interval, max_frames=max_frames, stack_bytes=stack_bytes, steppers=steppers
    )
    dumps, failures = dump_all((pid,), options)
    if not dumps:
        raise failures[0]
    return Dump(*dumps[0])


def dump_all(
    pids: Iterable[int],
    how: DumpOptions,
    meanwhile: Meanwhile = lambda _dumps: None,
    should_stop: Callable[[], bool] = lambda: False,
    *,
    follow: bool = False,
) -> Dumps:
    """Dump several processes; if a dump fails, go on with the next process.

    `meanwhile` gets the dumps of the first look during the wait for the second look.  If `should_stop`
    returns True, or the time is over, the dump ends, and the remaining threads have no stack.
    `follow`: also dump the descendants for which these processes wait, if sfsample may read the descendants.
    """
    run = _Run(how, should_stop, follow=follow)
    try:
        return run.run(dict.fromkeys(pids), meanwhile)
    finally:
        run.close()


class _Run:
    """One dump of several processes.  A step has its own OS thread, so a stuck process delays only itself."""

    def __init__(self, how: DumpOptions, should_stop: Callable[[], bool], *, follow: bool) -> None:
        self._how, self._was_asked, self._with_awaited = how, should_stop, follow
        self._images = ImageCache()
        self._followed: set[int] = set()  # process ids
        self._end_s = time.monotonic() + how.timeout
        self._dumpers: dict[int, Dumper] = {}  # dumper by process id
        self._stuck: set[int] = set()  # process ids
        self._failures: list[SfsampleError] = []

    def _should_stop(self) -> bool:
        return self._was_asked() or time.monotonic() > self._end_s

    def run(self, pids: Iterable[int], meanwhile: Meanwhile) -> Dumps:
        """Open, look, and return the results and the failures."""
        self._open_all(pids, self._how)
        for number in range(self._how.looks):
            rested_s = time.monotonic() + self._how.interval  # the wait includes `meanwhile`
            if number == 1:
                with suppress(TargetError, NoReturn):  # the next look fails, too, and reports why
                    self._step(lambda _: meanwhile([dumper.result() for dumper in self._dumpers.values()]))
            if number and not self._rest(rested_s):
                break
            for pid in self._dumpers.keys() - self._stuck:
                self._try(pid, self._dumpers[pid].look)
            if self._with_awaited and not number:
                self._follow()
        if not self._was_asked() and self._should_stop():
            what = f"the dump is not complete: its time was over, {self._how.timeout:g} s"
            self._failures.append(SfsampleError(what, "allow more: --timeout"))
        results = [self._try(pid, partial(self._result, pid)) for pid in tuple(self._dumpers)]
        return list(filter(None, results)), self._failures

    def _follow(self) -> None:
        """Open and look at the descendants for which a process waits: they may be in a deadlock.

        sfsample stops no descendant: the user has not named it, and all threads of a deadlock sleep.
        """
        named = tuple(self._dumpers)
        for pid in (chain := list(named)):
            found = set[int]()
            with suppress(TargetError, NoReturn):  # `_result` fails, too, and reports why
                found = self._step(self._dumpers[pid].awaited)
            for awaited in sorted(found - self._dumpers.keys()):
                if len(self._followed) < _MAX_FOLLOWED and _descends(awaited, named):
                    self._followed.add(awaited)
                    self._open_all((awaited,), replace(self._how, stop=False))
                    if awaited in self._dumpers:
                        self._try(awaited, self._dumpers[awaited].look)
                    chain += self._dumpers.keys() & {awaited}

    def _open_all(self, pids: Iterable[int], how: DumpOptions) -> None:
        for pid in pids:
            if self._dumpers and self._should_stop():
                self._failures.append(TargetError(pid, f"not dumped, as there was no time left: {pid}"))
            elif dumper := self._try(pid, partial(_open, pid, how, self._images)):
                self._dumpers[pid] = dumper

    def _rest(self, until_s: float) -> bool:
        """Wait for the next look; False: there is no further look."""
        while not self._should_stop() and (left := until_s - time.monotonic()) > 0:
            time.sleep(min(left, _MAX_SLEEP_S))
        return not self._should_stop()

    def _result(self, pid: int, _stop: Callable[[], bool]) -> ProcessDump | None:
        why = ASKED if self._was_asked() else STUCK if pid in self._stuck else TIME_OVER
        try:
            dump = self._dumpers[pid].result(why)
        except ReadFailed:  # the next attempt may succeed
            dump = self._dumpers[pid].result(why)
        if not dump.threads:
            raise NoSuchProcess(pid, f"process has ended: {pid}")
        return dump._replace(followed=pid in self._followed)

    def _try(self, pid: int, work: Callable[[Callable[[], bool]], _T]) -> _T | None:
        """Run a step on a process; return the result, or None if the step failed or is stuck."""
        try:
            return self._step(work)
        except (TargetError, NoReturn) as failure:
            self._failures += [failure] * (pid not in self._followed)
            if isinstance(failure, NoReturn):
                self._stuck.add(pid)
            elif dumper := self._dumpers.pop(pid, None):
                dumper.process.close()
        return None

    def _step(self, work: Callable[[Callable[[], bool]], _T]) -> _T:
        try:
            return TracerThread(work, self._should_stop, lambda _: True).run()
        except NoThread:
            if not self._dumpers:
                raise
            return work(self._should_stop)  # a limit on the number of threads must not prevent the first look

    def close(self) -> None:
        """Close the files of all processes.  Only a call that is stuck can hold threads now."""
        for dumper in self._dumpers.values():
            dumper.process.close_files()


def _open(pid: int, how: DumpOptions, image_cache: ImageCache, _stop: object) -> Dumper:
    """Open a process, even if a debugger traces it: sfsample can read it, and the debugger may detach."""
    try:
        process = LiveProcess(pid, how.stack_bytes, attach=how.stop, image_cache=image_cache)
    except AlreadyTraced:  # raised again below if the process is set aside (`process.stuck`)
        process = LiveProcess(pid, how.stack_bytes, attach=False, image_cache=image_cache)
    unwinder = Unwinder(process.modules, steppers=how.steppers, max_frames=how.max_frames)
    consistent = how.consistent and how.stop
    return Dumper(
        process, unwinder, stop=how.stop, consistent=consistent, python=how.python is not PythonView.OFF,
        with_locals=how.locals, max_connections=how.connections,
    )  # fmt: skip


def _descends(pid: int, ancestors: Collection[int]) -> bool:
    while pid > 0 and (stat := stat_of(pid)) is not None:
        pid = stat.parent
        if pid in ancestors:
            return True
    return False


class Examiner:
    """Names the frames, each place once, and finds out which thread waits for which other thread."""

    def __init__(self, options: SymbolOptions = DEFAULT_SYMBOL_OPTIONS) -> None:
        self._options = options
        self._symbolizer: Symbolizer | None = None

    def give_up(self, why: str) -> None:
        """Look up no more names."""
        if self._symbolizer is not None:
            self._symbolizer.give_up(why)

    def __call__(self, dumps: Sequence[ProcessDump]) -> "Verdict":
        """Return the verdict.  A followed process is shown only if in a deadlock.

        Each call must get dumps of the same processes, because the symbolizer is made only once.
        """
        from sfsample.dumping.diagnose.named_thread import name_threads
        from sfsample.dumping.diagnose.verdict import judge
        from sfsample.dumping.goroutines import name_goroutines
        from sfsample.symbolize.symbolizer import Symbolizer

        if self._symbolizer is None:
            roots = {dump.pid: dump.root for dump in dumps if dump.root is not None}
            self._symbolizer = Symbolizer(replace(self._options, go_places=True), roots)
        namer = self._symbolizer.frames
        named = [
            (dump._replace(goroutines=name_goroutines(dump.goroutines, namer, dump.pid)), threads)
            for dump, threads in ((dump, name_threads(dump, namer)) for dump in dumps)
        ]
        return judge(named)

    def missing_names(self) -> list[str]:
        """Return texts about modules whose frames have no names, and about unreadable files."""
        found = self._symbolizer
        return [] if found is None else [*map(str, found.missing_names()), *found.problems]
