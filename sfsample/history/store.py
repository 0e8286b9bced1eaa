"""The history in a directory: what watchers add, and what questions are answered from it.

Several watchers may write, each for services of its own; any number of processes may read meanwhile.
"""

import os
import sqlite3
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256

from sfsample.errors import BadInput, SfsampleError
from sfsample.history.facts import Gap, Selection, Slice, SliceFacts, facts_of, read_gap
from sfsample.history.files import DAY_S, FileName, HistoryFile, check_owner, file_names, remove
from sfsample.history.lock import lock
from sfsample.history.tiers import tidy
from sfsample.report.budget import Budget
from sfsample.report.formats import check_numbers
from sfsample.report.merge import merge
from sfsample.report.report import Report

KEEP_FOR_S, KEEP_BYTES = 90.0 * DAY_S, 10 << 30
_MAX_TRIES = 5  # to open all files, while another process replaces some
_FAILURES = (sqlite3.Error, OSError, BadInput, ValueError, OverflowError)
_SPACE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


class History:
    """A history; its directory is made if it is missing.  Methods raise SfsampleError.

    `problems` has a sentence for each file that was skipped.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.problems: dict[str, None] = {}
        self._locks: dict[str, int] = {}  # by service
        self._writer: tuple[FileName, HistoryFile] | None = None
        with self._errors("cannot open", directory):
            os.makedirs(directory, mode=0o700, exist_ok=True)
            check_owner(directory, directory=True)
            os.listdir(directory)

    @contextmanager
    def _errors(self, what: str, path: str) -> Iterator[None]:
        """Turn what can fail into one SfsampleError, after which all goes on."""
        try:
            yield
        except _FAILURES as failure:
            self._close_writer()
            text = failure.strerror if isinstance(failure, OSError) else failure
            code = getattr(failure, "sqlite_errorcode", 0) & 0xFF
            remedy = "free some space" if code in _SPACE or getattr(failure, "errno", 0) == 28 else \
                f"sfsample history check --history {self.directory} shows what is wrong"  # fmt: skip
            raise SfsampleError(f"{what}: {path}: {text}", remedy) from None

    def close(self) -> None:
        """Close all files, and let others watch the services."""
        self._close_writer()
        self.let_go(keep=())

    def let_go(self, keep: Container[str]) -> None:
        """Let others watch all services but some."""
        for service in [service for service in self._locks if service not in keep]:
            with suppress(OSError):
                os.unlink(self._lock_path(service))
            os.close(self._locks.pop(service))

    def _lock_path(self, service: str) -> str:
        name = sha256(service.encode("utf-8", "replace")).hexdigest()[:16]
        return os.path.join(self.directory, f".{name}.lock")

    def _close_writer(self) -> None:
        if self._writer is not None:
            self._writer[1].close()
            self._writer = None

    # -- writing

    def add(self, closed: Slice) -> None:
        """Keep a slice; when this returns, no crash of a program loses it."""
        with self._errors("cannot keep", f"a slice of {closed.service}"):
            facts = facts_of(closed)
            check_numbers(closed.report)
        self._write(closed.service, closed.begin_s, lambda file: file.insert(facts, closed.report))

    def add_gap(self, service: str, begin_s: float, end_s: float, why: str) -> None:
        """Note that there are no slices of a service, and why."""
        with self._errors("cannot keep", f"a gap of {service}"):
            gap = read_gap((begin_s, end_s, service, why))
        self._write(service, begin_s, lambda file: file.insert_gaps([gap]))

    def _write(self, service: str, begin_s: float, insert: Callable[[HistoryFile], None]) -> None:
        name = FileName(self.directory, int(begin_s // DAY_S), "1m")
        with self._errors("cannot write", name.path):
            self._lock(service)
            while True:
                file = self._open_writer(name)
                with file.writing():
                    if file.is_current:  # else it was replaced by one of the next tier, or removed
                        insert(file)
                        return
                self._close_writer()

    def _lock(self, service: str) -> None:
        if service in self._locks:
            return
        fd = lock(self._lock_path(service))
        if fd is None:
            raise SfsampleError(f"another watcher writes the history of {service}: {self.directory}",
                                "end it, or give this one another --history DIR")  # fmt: skip
        self._locks[service] = fd

    def _open_writer(self, name: FileName) -> HistoryFile:
        if self._writer is not None and self._writer[0] != name:
            self._close_writer()
        if self._writer is None:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            self._writer = name, HistoryFile(name.path, write=True)
        return self._writer[1]

    def tidy(self, now_s: float, keep_for_s: float = KEEP_FOR_S, keep_bytes: int = KEEP_BYTES) -> None:
        """Merge slices whose tier is over, and delete what is too old or too much."""
        with self._errors("cannot tidy", self.directory):
            for problem in tidy(self.directory, now_s, keep_for_s, keep_bytes):
                self.problems[problem] = None

    def delete(self, selection: Selection) -> int:
        """Delete slices and gaps; return how many slices those were."""
        count = 0
        with self._errors("cannot delete", self.directory):
            for name in file_names(self.directory):
                file = HistoryFile(name.path, write=True)
                with ExitStack() as stack:
                    stack.callback(file.close)
                    with file.writing():
                        facts, gaps = list(file.facts()), file.gaps()
                        chosen = [each for each in facts if selection.has(each)]
                        file.delete(chosen, filter(selection.has_gap, gaps))
                        if chosen == facts:
                            remove(name)
                    count += len(chosen)
                    if chosen and chosen != facts:
                        file.compact()
        return count

    # -- reading

    @contextmanager
    def _files(self, selection: Selection) -> Iterator[list[HistoryFile]]:
        """Yield the open files that can have what is selected, the oldest first.

        All are open before the first is read, so that none is missed or read twice while others are replaced.
        """
        for tries in range(_MAX_TRIES):
            with ExitStack() as stack, self._errors("cannot read", self.directory):
                try:
                    files = self._open_files(selection, stack)
                except FileNotFoundError:
                    if tries < _MAX_TRIES - 1:
                        continue
                    raise
                yield files
                return

    def _open_files(self, selection: Selection, stack: ExitStack) -> list[HistoryFile]:
        files: list[HistoryFile] = []
        replaced: set[str] = set()
        for name in file_names(self.directory):
            if name.end_s + DAY_S < selection.begin_s or name.day * DAY_S > selection.end_s:
                continue
            with self.skipping(name.path):
                file = HistoryFile(name.path)
                stack.callback(file.close)
                if not replaced & file.texts("identity"):
                    replaced |= file.texts("replaced")
                    files.append(file)
        return files

    @contextmanager
    def skipping(self, path: str) -> Iterator[None]:
        """Go on behind the block where a file is damaged, after a note in `problems`."""
        try:
            yield
        except (BadInput, sqlite3.Error, PermissionError) as failure:
            self.problems[f"{path}: {getattr(failure, 'strerror', None) or failure}"] = None

    def slices(self, selection: Selection = Selection()) -> list[SliceFacts]:  # noqa: B008 - immutable
        """Return the facts of slices, the oldest first."""
        found: list[SliceFacts] = []
        with self._files(selection) as files:
            for file in files:
                with self.skipping(file.path):
                    found += filter(selection.has, file.facts())
        return sorted(found, key=lambda facts: (facts.begin_s, facts.service))

    def gaps(self, selection: Selection = Selection()) -> list[Gap]:  # noqa: B008 - immutable
        """Return the times without slices, the oldest first."""
        found: list[Gap] = []
        with self._files(selection) as files:
            for file in files:
                with self.skipping(file.path):
                    found += filter(selection.has_gap, file.gaps())
        return sorted(found)

    def report(self, selection: Selection = Selection()) -> Report:  # noqa: B008 - immutable
        """Return one report of slices: counts, durations and statistics are added."""
        with self._files(selection) as files:
            size = sum(os.path.getsize(file.path) for file in files)
            reports = [report for file in files for report in self._reports(file, selection)]
            try:
                report = merge(reports, Budget(8 * size)) if reports else Report((), (), ())
                check_numbers(report)
            except BadInput as failure:
                raise SfsampleError(f"cannot merge: {failure}", "choose a shorter time") from None
        return report

    def _reports(self, file: HistoryFile, selection: Selection) -> list[Report]:
        """Return a report for each service, and for each set of weights."""
        groups: dict[object, list[SliceFacts]] = {}
        reports: list[Report] = []
        with self.skipping(file.path):
            for facts in filter(selection.has, file.facts()):
                groups.setdefault((facts.service, facts.weights), []).append(facts)
            for group in groups.values():
                reports.append(file.report(group))  # noqa: PERF401 - those before a damaged one are kept
        return reports

    def findings(self) -> Iterator[str]:
        """Yield what is wrong with a file: its structure, its facts, its stacks, its totals."""
        for name in file_names(self.directory):
            try:
                file = HistoryFile(name.path)
                with ExitStack() as stack:
                    stack.callback(file.close)
                    yield from (f"{name.path}: {text}" for text in file.integrity())
                    file.gaps()
                    for facts in file.facts():
                        file.stacks(facts)
            except (BadInput, sqlite3.Error, OSError) as failure:
                yield f"{name.path}: {getattr(failure, 'strerror', None) or failure}"
