"""One file of a history: an SQLite database with the slices of one UTC day.

The tables have facts in columns, and stacks as blobs (history/blobs.py).  A commit is written to the
write-ahead log first, so a killed writer loses only the slice that it was writing.  A reader sees the file as
it was when the reader opened it, even if other processes then write, merge or delete slices.

sfsample uses a file only if it belongs to this user or to root, and no other user may write to it.  The file
must have exactly the tables of this version, so no view and no SQL trigger runs.  Every query has a limit.

Invariant: any file gives slices or raises BadInput, in bounded time (tests/history/test_hostile_files.py).
"""

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from secrets import randbelow
from typing import Any
from urllib.parse import quote

from sfsample.errors import BadInput
from sfsample.history import blobs
from sfsample.history.facts import COLUMNS, Gap, Selection, SliceFacts, as_row, read_facts, read_gap
from sfsample.history.paths import BESIDE, check_owner
from sfsample.report.budget import ReadingBudget
from sfsample.report.merge import common, common_values, sum_known
from sfsample.report.report import WEIGHTS, Report
from sfsample.report.stats import ReportStats, sum_stats
from sfsample.report.time_slices import TIME_UNIT_NS, Columns, TimeSlice, add_columns

_VERSION = 3  # version of the tables
_BUSY_S = 30.0  # seconds to wait while another process writes
_MAX_STEPS = 500  # most steps of one statement, which take 10 to 20 s
_STEP = 1_000_000  # instructions of SQLite's virtual machine in a step
_MAX_VALUE_BYTES = 100 << 20
_MAX_SLICES = 2_000_000  # slices that are read from a file
_Stacks = tuple[ReportStats, Columns]  # the statistics of a slice, and its columns
_MAX_PROBLEMS = 20  # problems that are kept in the statistics of a slice
_FACTS = ", ".join(name for name, *_ in COLUMNS)
_TYPED_FACTS = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)
_SCHEMA = (
    f"CREATE TABLE slice (id INTEGER PRIMARY KEY AUTOINCREMENT, {_TYPED_FACTS})",  # no id is used twice
    "CREATE TABLE stacks (id INTEGER PRIMARY KEY, stats BLOB, rows BLOB)",
    "CREATE TABLE names (id INTEGER PRIMARY KEY, service TEXT, batch BLOB)",
    "CREATE TABLE gap (begin_s REAL, end_s REAL, service TEXT, why TEXT)",
)
_COUNTER = "CREATE TABLE sqlite_sequence(name,seq)"  # table that SQLite adds for AUTOINCREMENT


def inode_of(path: str) -> int:
    """Return a number that changes when another file replaces this file; 0: there is no file."""
    with suppress(FileNotFoundError):
        return os.stat(path).st_ino
    return 0


class Damaged(BadInput):
    """A file is damaged, or is no SQLite file; a slice that is added to this file may be lost."""


class HistoryFile:
    """An open file.  Its methods raise BadInput for a damaged file, and sqlite3.Error if a write fails."""

    def __init__(self, path: str, *, write: bool = False) -> None:
        if write:
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for each in (path, *filter(os.path.lexists, (path + suffix for suffix in BESIDE))):
            check_owner(each)
        self.path = path
        self._inode = os.stat(path).st_ino
        self._names: dict[str, blobs.ServiceNames] = {}
        self._budget = ReadingBudget(8 * os.path.getsize(path))
        # A reader needs mode=rw, to complete the commit of a killed writer.
        self._db = sqlite3.connect(f"file:{quote(os.fsencode(path))}?mode=rw", uri=True, timeout=_BUSY_S,
                                   isolation_level=None, check_same_thread=False)  # fmt: skip
        try:
            self._prepare(write=write)
        except BaseException:
            self._db.close()
            raise

    def _prepare(self, *, write: bool) -> None:
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
        self._run("PRAGMA trusted_schema=OFF")
        self._run("PRAGMA cell_size_check=ON")
        if write:
            self._run("PRAGMA journal_mode=WAL")
            self._run("PRAGMA synchronous=NORMAL")
            self._run("PRAGMA secure_delete=ON")
            with self.writing():
                if self._version() == 0:
                    for statement in _SCHEMA:
                        self._run(statement)
                    self._run(f"PRAGMA user_version={_VERSION}")
                    self._run(f"PRAGMA application_id={1 + randbelow((1 << 31) - 1)}")
        else:
            self._run("PRAGMA query_only=ON")
            self._run("BEGIN")
        version = self._version()
        if version not in (0, _VERSION):
            raise BadInput(f"written by another version of sfsample (tables {version}, not {_VERSION})")
        tables = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master LIMIT 100")}
        if not tables:
            raise FileNotFoundError(self.path)  # the writer was killed before the first commit
        if tables != {*_SCHEMA, _COUNTER}:
            raise BadInput("its tables are not the tables of a history")

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _version(self) -> int:
        [(version,)] = self._rows("PRAGMA user_version")
        return int(version)

    def _run(self, statement: str, *values: object) -> int:
        try:
            return self._db.execute(statement, values).lastrowid or 0
        except OverflowError:  # SQLite's integers have 64 bits
            raise BadInput("a number of more than 64 bits") from None
        except sqlite3.DatabaseError as failure:
            if type(failure) is sqlite3.DatabaseError:  # a subclass is another failure, such as a full disk
                raise Damaged(f"damaged: {failure}") from None
            raise

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query.  Raises BadInput if damage makes the query fail or take too long."""
        steps = iter(range(_MAX_STEPS))
        self._db.set_progress_handler(lambda: next(steps, None) is None, _STEP)
        try:
            with closing(self._db.execute(query, values)) as cursor:
                yield from cursor
        except (sqlite3.Error, UnicodeDecodeError) as failure:
            kind = Damaged if type(failure) is sqlite3.DatabaseError else BadInput
            raise kind(f"damaged: {failure}") from None
        finally:
            self._db.set_progress_handler(None, 0)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Commit all changes of the block; if the block fails, commit none."""
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            self._run("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._run("ROLLBACK")
            raise

    @property
    def is_current(self) -> bool:
        """True if the path still leads to this file."""
        return inode_of(self.path) == self._inode

    @property
    def identity(self) -> int:
        """A random number that identifies the file; a new file with the same path has another number."""
        [(number,)] = self._rows("PRAGMA application_id")
        return int(number)

    def facts(self, first: int = 0, chosen: Selection = Selection()) -> Iterator[SliceFacts]:  # noqa: B008
        """Yield the facts from number `first` on; `chosen` is a hint: other slices may be yielded, too."""
        stem = os.path.basename(self.path).removesuffix(".sqlite")
        is_any = chosen.begin_s == 0 and chosen.end_s == inf
        query = f"""SELECT id, {_FACTS} FROM slice WHERE id >= ? AND coalesce(service = ?, 1)
                    AND (? OR end_s >= ? AND begin_s <= ?) ORDER BY id LIMIT {_MAX_SLICES}"""  # noqa: S608 - constants
        values = first, chosen.service, is_any, chosen.begin_s, chosen.end_s
        for number, *row in self._rows(query, *values):
            yield read_facts(f"{stem}.{number}", row)

    def tiers(self) -> set[str]:
        """Return the tiers of the slices that are not pinned."""
        return {tier for (tier,) in self._rows("SELECT DISTINCT tier FROM slice WHERE NOT pinned LIMIT 9")}

    def gaps(self) -> list[Gap]:
        """Return all gaps in the file."""
        query = f"SELECT begin_s, end_s, service, why FROM gap LIMIT {_MAX_SLICES}"  # noqa: S608 - constants
        return [*map(read_gap, self._rows(query))]

    def names(self, service: str) -> blobs.ServiceNames:
        """Return the frames and stacks of a service."""
        if service not in self._names:
            names = blobs.ServiceNames()
            for (batch,) in self._rows("SELECT batch FROM names WHERE service = ? ORDER BY id", service):
                try:
                    names.unpack(batch, self._budget)
                except BadInput as failure:
                    raise Damaged(str(failure)) from None
            self._names[service] = names
        return self._names[service]

    def report(self, facts: Sequence[SliceFacts]) -> Report:
        """Return one report of several slices, which have the same service and the same weights."""
        return self._report(facts, *self._sums(facts, map(self.stacks, facts)))

    def _report(self, facts: Sequence[SliceFacts], stats: ReportStats, columns: Columns) -> Report:
        weights = facts[0].weights
        numbers, samples, *times = columns
        sums = [samples, *([time * TIME_UNIT_NS for time in column] for column in times)]
        kept = [numbers, *(sums[WEIGHTS.index(name)] for name in weights)]
        report = self.names(facts[0].service).report(kept, weights)
        build_id = common(each.build_id for each in facts)
        return report._replace(
            started_ns=round(min(each.begin_s for each in facts) * 1e9) or None,
            duration_ns=sum_known(each.duration_ns for each in facts),
            rate_hz=common(each.rate_hz for each in facts),
            host=common(each.host for each in facts),
            labels=common_values([dict(each.labels) for each in facts]),
            target=None if build_id is None else {"build_id": build_id},
            stats=stats,
        )

    def _sums(self, facts: Sequence[SliceFacts], parts: Iterable[_Stacks]) -> _Stacks:
        all_stats, all_columns = zip(*parts, strict=True)
        stats = sum_stats(all_stats)
        stats = stats.having(problems=[*dict.fromkeys(stats.texts("problems"))][:_MAX_PROBLEMS])
        return stats, add_columns(all_columns, len(self.names(facts[0].service).stacks))

    def time_slices(self, facts: Sequence[SliceFacts]) -> tuple[Report, list[TimeSlice]]:
        """Return the report of slices, and each slice with indexes of the report's stacks."""
        parts = [self.stacks(each) for each in facts]
        stats, columns = self._sums(facts, parts)
        place, slices = {stack: at for at, stack in enumerate(columns[0])}, []
        for each, (own, (numbers, *weights)) in zip(facts, parts, strict=True):
            placed = [[*map(place.__getitem__, numbers)], *weights]
            slices.append(
                TimeSlice(*each[1:3], each.cpu_charged_ns, each.cpu_sampled_ns, placed, own.cpu_ms_by_second)
            )
        return self._report(facts, stats, columns), slices

    def stacks(self, facts: SliceFacts) -> _Stacks:
        """Return a slice's statistics and columns.  Raises BadInput if `facts.samples` is not the total."""
        stacks = len(self.names(facts.service).stacks)
        for stats, blob in self._rows("SELECT stats, rows FROM stacks WHERE id = ?", facts.number):
            columns = blobs.unpack_columns(blob, stacks, self._budget)
            if (samples := sum(columns[1])) != facts.samples:
                raise BadInput(f"slice {facts.id}: {samples} samples instead of {facts.samples}")
            return ReportStats(blobs.unpack_json(stats, self._budget).plain_object()), columns
        raise BadInput(f"slice {facts.id}: no stacks")

    def is_whole(self, facts: SliceFacts) -> bool:
        """Return True if the stacks of a slice can be read."""
        with suppress(BadInput):
            return bool(self.stacks(facts))
        return False

    def integrity(self) -> list[str]:
        """Return a sentence for each damage that SQLite finds."""
        return [str(text) for (text,) in self._rows("PRAGMA integrity_check(5)") if text != "ok"]

    # -- changes; the caller uses these methods within `writing`

    def insert(self, facts: SliceFacts, report: Report) -> None:
        """Add a slice.  Raises BadInput if a number is too large."""
        names = self.names(facts.service)
        numbers = names.number_stacks(report)
        if batch := names.pack():
            self._run("INSERT INTO names (service, batch) VALUES (?, ?)", facts.service, batch)
        samples, *times = map(report.column, WEIGHTS)
        # A stack may occur twice, because names have no thread ids; `_sums` adds equal stacks.
        parts = [(report.stats, (numbers, samples, *map(blobs.in_units, times)))]
        stats, columns = self._sums([facts], parts)
        self._insert(facts, stats.having(cpu_ms_by_second=report.stats.cpu_ms_by_second), columns)

    def _insert(self, facts: SliceFacts, stats: ReportStats, columns: Columns) -> None:
        row = as_row(facts)
        number = self._run(f"INSERT INTO slice ({_FACTS}) VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608
        packed = blobs.pack_json(stats.document), blobs.pack_columns(columns)
        self._run("INSERT INTO stacks VALUES (?, ?, ?)", number, *packed)

    def merge(self, group: Sequence[SliceFacts], merged: SliceFacts) -> None:
        """Replace slices of one service by one slice with the facts `merged`."""
        stats, columns = self._sums(group, map(self.stacks, group))
        self.delete(group)
        self._insert(merged, stats, columns)

    def pin(self, facts: SliceFacts) -> None:
        """Pin a slice: it is never merged, and is deleted last if the history is too large."""
        self._run("UPDATE slice SET pinned = 1 WHERE id = ?", facts.number)

    def compact(self) -> None:
        """Free the space of deleted slices if it is more than 1/8 of the file; not within `writing`."""
        [(free, pages)] = self._rows("SELECT * FROM pragma_freelist_count, pragma_page_count")
        if 8 * free > pages:
            self._run("VACUUM")

    def insert_gap(self, gap: Gap) -> None:
        """Add a gap."""
        self._run("INSERT INTO gap VALUES (?, ?, ?, ?)", *gap)

    def delete(self, facts: Iterable[SliceFacts]) -> None:
        """Delete slices."""
        for each in facts:
            self._run("DELETE FROM slice WHERE id = ?", each.number)
            self._run("DELETE FROM stacks WHERE id = ?", each.number)
