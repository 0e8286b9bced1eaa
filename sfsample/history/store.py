"""A history in a directory.  Each watch writes its own services, while other processes write or read."""

import os
import sqlite3
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from errno import EDQUOT, ENOSPC
from shlex import quote
from typing import TypeVar

from sfsample.errors import BadInput, NoSpace, SfsampleError
from sfsample.history import RETENTION
from sfsample.history.facts import Gap, Selection, Slice, SliceFacts, facts_of, grouped, read_gap
from sfsample.history.files import Damaged, HistoryFile, inode_of
from sfsample.history.paths import DAY_S, FileName, check_owner, file_names, files_set_aside, lock, set_aside
from sfsample.history.retention import size_of, tidy
from sfsample.report.budget import ReadingBudget
from sfsample.report.formats import check_numbers
from sfsample.report.merge import merge
from sfsample.report.report import Report
from sfsample.report.time_slices import TimeSlice, TimeSlices, renumber

_T = TypeVar("_T")
_FAILURES = (sqlite3.Error, OSError, BadInput, ValueError, OverflowError)
_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class History:
    """A history; its directory is made if it is missing.  Methods raise SfsampleError.

    `problems` has a sentence for each file that was skipped.  A damaged file is renamed ("set aside") before
    a slice is added, because a slice in a damaged file may be lost.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.problems: dict[str, None] = {}
        self._damaged: dict[str, tuple[int, str]] = {}  # path of a damaged file -> `inode_of`, and the damage
        self._locks: dict[str, int] = {}  # service -> descriptor of its lock
        self._writer: HistoryFile | None = None
        with self._errors("cannot open", directory):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            check_owner(directory, directory=True)
            os.listdir(directory)

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        """Turn any failure of the block into an SfsampleError."""
        try:
            yield
        except _FAILURES as failure:
            self._close_writer()
            text = failure.strerror if isinstance(failure, OSError) else failure
            code = getattr(failure, "sqlite_errorcode", 0) & 0xFF
            if code in _SPACE or getattr(failure, "errno", 0) in (ENOSPC, EDQUOT):
                raise NoSpace(f"{what}: {path}: {text}", "free some space") from None
            remedy = "choose another directory with --history"
            if isinstance(failure, BadInput) and what != "cannot open":
                remedy = f"sfsample history check --history {quote(self.directory)} shows what is wrong"
            raise SfsampleError(f"{what}: {path}: {text}", remedy) from None

    def close(self) -> None:
        """Close all files, and let other watches write the services."""
        self._close_writer()
        self.let_go(keep=())

    def let_go(self, keep: Container[str]) -> None:
        """Let other watches write all services except `keep`."""
        for service in [service for service in self._locks if service not in keep]:
            os.close(self._locks.pop(service))

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def add(self, closed: Slice) -> None:
        """Keep a slice, so that it survives a crash of this program."""
        with self._errors("cannot keep", f"a slice of {closed.service}"):
            facts = facts_of(closed)
            check_numbers(closed.report)
        self._write(closed.service, closed.begin_s, lambda file: file.insert(facts, closed.report))

    def pin(self, services: Container[str], begin_s: float, end_s: float) -> int:
        """Pin the slices of services in a period; return the number of slices."""

        def pin(file: HistoryFile) -> int:
            own = [facts for facts in file.facts() if facts.service in services]
            chosen = [facts for facts in own if facts.begin_s < end_s and facts.end_s > begin_s]
            for facts in chosen:
                file.pin(facts)
            return len(chosen)

        return sum(self._change(name, pin) for name in file_names(self.directory)
                   if name.end_s > begin_s - DAY_S and name.day * DAY_S < end_s)  # fmt: skip

    def add_gap(self, service: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep a gap: a period without slices of a service, and the reason."""
        with self._errors("cannot keep", f"a gap of {service}"):
            gap = read_gap((begin_s, end_s, service, why))
        self._write(service, begin_s, lambda file: file.insert_gap(gap))

    def _write(self, service: str, begin_s: float, insert: Callable[[HistoryFile], None]) -> None:
        name = FileName(self.directory, int(begin_s // DAY_S))
        with self._errors("cannot write", name.path):
            self._lock(service)
        self._change(name, insert)

    def _change(self, name: FileName, work: Callable[[HistoryFile], _T]) -> _T:
        """Make one commit in a file, which may be new; return the result of `work`."""
        with self._errors("cannot write", name.path):
            self._set_aside(name)
            which = inode_of(name.path)
            try:
                return self._commit(name, work)
            except Damaged as failure:
                self._damaged[name.path] = which, str(failure)
            self._set_aside(name)
            return self._commit(name, work)

    def _commit(self, name: FileName, work: Callable[[HistoryFile], _T]) -> _T:
        while True:
            if self._writer is None or self._writer.path != name.path:
                self._close_writer()
                os.makedirs(self.directory, mode=0o700, exist_ok=True)
                self._writer = HistoryFile(name.path, write=True)
            with self._writer.writing():
                if self._writer.is_current:  # True: the file was not removed
                    return work(self._writer)
            self._close_writer()

    def _set_aside(self, name: FileName) -> None:
        """Rename a file that was found damaged, if no other watch has renamed it."""
        if name.path not in self._damaged:
            return
        self._close_writer()
        which, why = self._damaged.pop(name.path)
        if (fd := lock(self.directory, "damaged")) is not None:
            try:
                if inode_of(name.path) == which:
                    path = set_aside(name)
                    self.problems.pop(f"{name.path}: {why}", None)  # replaced by the message below
                    self.problems[f"{name.path}: {why}: renamed to {path}; slices go to a new file"] = None
            finally:
                os.close(fd)

    def _lock(self, service: str) -> None:
        if service in self._locks:
            return
        fd = lock(self.directory, f"service {service}")
        if fd is None:
            raise SfsampleError(f"another watch writes the history of {service}: {self.directory}",
                                "end that watch, or give this watch another --history DIR")  # fmt: skip
        self._locks[service] = fd

    def tidy(self, now_s: float, keep_for_s: float = RETENTION.keep_for,
             keep_bytes: int = RETENTION.keep_bytes) -> None:  # fmt: skip
        """Merge slices that are old enough, and delete slices that are too old or too many."""
        with self._errors("cannot tidy", self.directory):
            tidy(self.directory, now_s, keep_for_s, keep_bytes, self.skipping)

    def last_end_s(self, service: str, before_s: float) -> float | None:
        """Return the end of the last slice or gap in the 24 hours before a time; None: no slice, no gap."""
        recent = Selection(service, before_s - DAY_S, before_s)
        ends = [*(facts.end_s for facts in self.slices(recent)), *(gap.end_s for gap in self.gaps(recent))]
        return max(ends, default=None)

    def _read(self, selections: Sequence[Selection], ask: Callable[[HistoryFile], Iterable[_T]]) -> list[_T]:
        """Return the results of `ask` for the files of the selected periods, the oldest first."""
        found: list[_T] = []
        with self._errors("cannot read", self.directory):
            for name in file_names(self.directory):
                if any(name.end_s + DAY_S >= each.begin_s and name.day * DAY_S <= each.end_s
                       for each in selections):  # fmt: skip
                    with self.skipping(name.path), closing(HistoryFile(name.path)) as file:
                        found.extend(ask(file))  # results that come before the damage stay
        return found

    @contextmanager
    def skipping(self, path: str) -> Iterator[None]:
        """Skip the rest of the block if its file is damaged or was removed; note damage in `problems`."""
        try:
            with suppress(FileNotFoundError):
                yield
        except (BadInput, sqlite3.Error, PermissionError) as failure:
            if isinstance(failure, Damaged):
                self._damaged[path] = inode_of(path), str(failure)
            self.problems[f"{path}: {getattr(failure, 'strerror', None) or failure}"] = None

    def slices(self, selection: Selection = Selection()) -> list[SliceFacts]:  # noqa: B008 - immutable
        """Return the facts of the selected slices, the oldest first."""
        found = self._read([selection], lambda file: filter(selection.has, file.facts(chosen=selection)))
        return sorted(found, key=lambda facts: (facts.begin_s, facts.service))

    def gaps(self, selection: Selection = Selection()) -> list[Gap]:  # noqa: B008 - immutable
        """Return the selected gaps, the oldest first."""
        return sorted(self._read([selection], lambda file: filter(selection.has_gap, file.gaps())))

    def report(self, selection: Selection = Selection()) -> Report:  # noqa: B008 - immutable
        """Return one report of the selected slices, with the sums of counts, durations and statistics."""
        [report] = self.reports([selection])
        return report

    def reports(self, selections: Sequence[Selection]) -> list[Report]:
        """Return a report for each selection; each file is read once."""
        parts: list[list[Report]] = [[] for _ in selections]
        services = {each.service for each in selections}
        begin_s, end_s = min(each.begin_s for each in selections), max(each.end_s for each in selections)
        around = Selection(services.pop() if len(services) == 1 else None, begin_s, end_s)

        def ask(file: HistoryFile) -> Iterator[None]:
            facts = [*file.facts(chosen=around)]
            for selection, found in zip(selections, parts, strict=True):
                found.extend(self._answers(file, facts, selection, file.report))
                yield

        self._read(selections, ask)
        return [*map(self._merge, parts)]

    def time_slices(self, selection: Selection) -> tuple[Report, TimeSlices]:
        """Return one report of the selected slices, and each slice with indexes of the report's stacks."""

        def ask(file: HistoryFile) -> Iterator[tuple[Report, list[TimeSlice]]]:
            return self._answers(file, file.facts(chosen=selection), selection, file.time_slices)

        parts = self._read([selection], ask)
        gaps = [(gap.begin_s, gap.end_s, gap.why) for gap in self.gaps(selection)]
        return self._merge([report for report, _ in parts]), TimeSlices(renumber(parts), gaps)

    def _answers(self, file: HistoryFile, slices: Iterable[SliceFacts], selection: Selection,
                 ask: Callable[[Sequence[SliceFacts]], _T]) -> Iterator[_T]:  # fmt: skip
        """Yield the answer for each group of slices; leave out unreadable slices, and note a problem."""
        chosen = filter(selection.has, slices)
        for group in grouped(chosen, lambda facts: (facts.service, facts.weights)).values():
            try:
                answer = ask(group)
            except BadInput as failure:
                whole = [*filter(file.is_whole, group)]
                what = f"{len(group) - len(whole)} of {len(group)} slices of {group[0].service}"
                self.problems[f"{file.path}: {what}: {failure}"] = None
                if not whole:
                    continue
                answer = ask(whole)
            yield answer

    def _merge(self, reports: list[Report]) -> Report:
        try:
            budget = ReadingBudget(8 * size_of(self.directory))
            report = merge(reports, budget) if reports else Report((), (), ())
            check_numbers(report)
        except BadInput as failure:
            raise SfsampleError(f"cannot merge: {failure}", "choose a shorter time") from None
        return report

    def findings(self) -> Iterator[str]:
        """Yield a sentence for each damage in a file: in its structure, facts, stacks or totals."""
        self.problems.clear()
        for name, path in files_set_aside(self.directory):
            former = os.path.basename(name.path + path.rpartition("Z")[2])  # name before it was set aside
            yield (f"{path}: a damaged file, whose slices are not shown; delete it if you do not need it; "
                   f"to read its intact slices: mkdir -m 700 OTHER; cp {quote(path)} OTHER/{former}; "
                   "sfsample history list --history OTHER")  # fmt: skip
        for name in file_names(self.directory):
            with self.skipping(name.path), closing(HistoryFile(name.path)) as file:
                yield from (f"{name.path}: {text}" for text in file.integrity())
                file.gaps()
                for facts in file.facts():
                    file.stacks(facts)
        yield from self.problems
