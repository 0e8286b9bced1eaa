"""One file of a history: an SQLite database with the slices of one UTC day.

The tables hold facts in columns, and stacks as blobs (history/blobs.py).  A commit is in the write-ahead log
before it is acknowledged, so a writer that is killed loses the slice that it was writing and no other.  A
reader sees what there was when it opened the file, whatever is written, merged or deleted meanwhile.

A file is used only if it belongs to this user or to root and no one else may write it, and if it has exactly
the tables of this version: no view and no trigger runs.  Every look-up has a limit.

Invariant: any file is slices or raises BadInput, in bounded time (tests/history/test_hostile_files.py).
"""

import os
import re
import sqlite3
import stat
import time
from calendar import timegm
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from secrets import randbelow
from typing import Any, NamedTuple
from urllib.parse import quote

from sfsample.errors import BadInput
from sfsample.history.blobs import Names, in_units, pack_columns, pack_json, unpack_columns, unpack_json
from sfsample.history.facts import COLUMNS, Gap, Selection, SliceFacts, as_row, read_facts, read_gap
from sfsample.report.budget import Budget
from sfsample.report.merge import common, common_values, sum_known, sum_stats
from sfsample.report.report import SECONDS, WEIGHTS, Report
from sfsample.report.time_line import TIME_UNIT_NS, Columns, TimeSlice, add_columns

DAY_S = 86400
_VERSION = 3  # of the tables
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)\.sqlite", re.ASCII)
_ASIDE = re.compile(r"(\d{4}-\d\d-\d\d)\.sqlite\.damaged-\d{8}T\d{6}Z(?:-wal|-journal)?", re.ASCII)
_BESIDE = ("-wal", "-shm", "-journal")  # files of SQLite's that belong to a database
_BUSY_S = 30.0  # another process may write for so long
_MAX_STEPS = 500  # callbacks during one statement, each after _STEP instructions: 10 to 20 s
_STEP = 1_000_000
_MAX_VALUE_BYTES = 100 << 20
_MAX_SLICES = 2_000_000  # of a file, that are read
_MAX_PROBLEMS = 20  # of the statistics of a slice, that are kept
_FACTS = ", ".join(name for name, *_ in COLUMNS)
_TYPED_FACTS = ", ".join(f"{name} {kind}" for name, kind, _ in COLUMNS)
_SCHEMA = (
    f"CREATE TABLE slice (id INTEGER PRIMARY KEY AUTOINCREMENT, {_TYPED_FACTS})",  # no id is used twice
    "CREATE TABLE stacks (id INTEGER PRIMARY KEY, stats BLOB, rows BLOB)",  # of the slice with this id
    "CREATE TABLE names (id INTEGER PRIMARY KEY, service TEXT, batch BLOB)",
    "CREATE TABLE gap (begin_s REAL, end_s REAL, service TEXT, why TEXT)",
)
_COUNTER = "CREATE TABLE sqlite_sequence(name,seq)"  # SQLite's, for AUTOINCREMENT


class Damaged(BadInput):
    """A file is none of SQLite's, or not whole: what is added to it may be lost."""


class FileName(NamedTuple):
    """Which file of a history: the day, since the epoch."""

    directory: str
    day: int

    @property
    def path(self) -> str:
        """The path."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.day * DAY_S))
        return os.path.join(self.directory, f"{day}.sqlite")

    @property
    def end_s(self) -> int:
        """When its day is over."""
        return (self.day + 1) * DAY_S


def file_names(directory: str) -> list[FileName]:
    """Return the files of a history, the oldest first.  Raises OSError."""
    return sorted(name for _, name in _matching(directory, _NAME))


def files_set_aside(directory: str) -> list[tuple[FileName, str]]:
    """Return what was set aside: of which file, and the path; the oldest first.  Raises OSError."""
    return sorted((name, os.path.join(directory, found)) for found, name in _matching(directory, _ASIDE))


def _matching(directory: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, FileName]]:
    for match in filter(None, map(pattern.fullmatch, os.listdir(directory))):
        with suppress(ValueError):
            day = timegm(time.strptime(match[1], "%Y-%m-%d")) // DAY_S
            yield match[0], FileName(directory, day)


def check_owner(path: str, *, directory: bool = False) -> None:
    """Raise BadInput unless a path is what it should be, and only this user and root may have written it."""
    status = os.lstat(path)
    if not (stat.S_ISDIR if directory else stat.S_ISREG)(status.st_mode):
        is_link = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "something else"
        raise BadInput(f"{is_link}, not a {'directory' if directory else 'regular file'}")
    if status.st_uid not in (0, os.geteuid()):
        raise BadInput(f"it belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022:
        raise BadInput(f"other users may write it: chmod go-w {path}")


def remove(name: FileName) -> None:
    """Unlink a file; what SQLite keeps beside it first, as it would be taken for that of a new file."""
    for suffix in (*_BESIDE, ""):
        with suppress(FileNotFoundError):
            os.unlink(name.path + suffix)


def set_aside(name: FileName) -> str:
    """Rename a damaged file, and what SQLite keeps beside it; return the new path."""
    path = f"{name.path}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    for suffix in (*_BESIDE, ""):
        with suppress(FileNotFoundError):
            os.rename(name.path + suffix, path + suffix)
    with suppress(FileNotFoundError):
        os.unlink(f"{path}-shm")  # an index of the log, which SQLite makes anew
    return path


class HistoryFile:
    """An open file.  Methods raise BadInput for a damaged one, sqlite3.Error where a write fails."""

    def __init__(self, path: str, *, write: bool = False) -> None:
        if write:
            with suppress(FileExistsError):
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        for each in (path, *filter(os.path.lexists, (path + suffix for suffix in _BESIDE))):
            check_owner(each)
        self.path = path
        self._inode = os.stat(path).st_ino
        self._names: dict[str, Names] = {}
        self._budget = Budget(8 * os.path.getsize(path))
        # a reader may have to complete what a writer that was killed has begun
        self._db = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=_BUSY_S,
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
            raise BadInput(f"another sfsample has written it (tables of version {version}, not {_VERSION})")
        tables = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master LIMIT 100")}
        if not tables:
            raise FileNotFoundError(self.path)  # its writer was killed before the first commit
        if tables != {*_SCHEMA, _COUNTER}:
            raise BadInput("it has other tables than a history has")

    def close(self) -> None:
        """Close it."""
        self._db.close()

    def _version(self) -> int:
        [(version,)] = self._rows("PRAGMA user_version")
        return int(version)

    def _run(self, statement: str, *values: object) -> int:
        try:
            return self._db.execute(statement, values).lastrowid or 0
        except sqlite3.DatabaseError as failure:
            if type(failure) is sqlite3.DatabaseError:  # not one of its subclasses, such as for a full disk
                raise Damaged(f"damaged: {failure}") from None
            raise

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; what makes it endless or impossible is damage."""
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
        """Make one commit of the block, or nothing."""
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
        """Whether the path still leads to this file."""
        with suppress(FileNotFoundError):
            return os.stat(self.path).st_ino == self._inode
        return False

    @property
    def identity(self) -> int:
        """A number that a file has from its first commit on; one that is made anew has another."""
        [(number,)] = self._rows("PRAGMA application_id")
        return int(number)

    # -- reading

    def facts(self, first: int = 0, chosen: Selection = Selection()) -> Iterator[SliceFacts]:  # noqa: B008
        """Yield the facts of slices from a number on, in the order of these.

        Those that are not of the service and time that are chosen may be left out.
        """
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
        """Return the times without slices."""
        query = f"SELECT begin_s, end_s, service, why FROM gap LIMIT {_MAX_SLICES}"  # noqa: S608 - constants
        return [*map(read_gap, self._rows(query))]

    def names(self, service: str) -> Names:
        """Return the frames and stacks of a service."""
        if service not in self._names:
            names = Names()
            for (batch,) in self._rows("SELECT batch FROM names WHERE service = ? ORDER BY id", service):
                try:
                    names.unpack(batch, self._budget)
                except BadInput as failure:
                    raise Damaged(str(failure)) from None
            self._names[service] = names
        return self._names[service]

    def report(self, facts: Sequence[SliceFacts]) -> Report:
        """Return one report of slices of one service that have the same weights."""
        weights = facts[0].weights
        stats, (numbers, samples, *times) = self.sums(facts)
        columns = [samples, *([time * TIME_UNIT_NS for time in column] for column in times)]
        kept = [numbers, *(columns[WEIGHTS.index(name)] for name in weights)]
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

    def sums(self, facts: Sequence[SliceFacts]) -> tuple[dict[str, Any], Columns]:
        """Return the statistics and the columns of slices of one service together."""
        slices = [self.stacks(each) for each in facts]
        stats = sum_stats([found for found, _ in slices]) or {}
        stats["problems"] = [*dict.fromkeys(map(str, stats["problems"]))][:_MAX_PROBLEMS]
        stacks = len(self.names(facts[0].service).stacks.rows)
        return stats, add_columns((columns for _, columns in slices), stacks)

    def time_slices(self, facts: Sequence[SliceFacts]) -> list[TimeSlice]:
        """Return slices with the indexes that their stacks have in `report` of all of them."""
        found = []
        for each in facts:
            stats, columns = self.stacks(each)
            found.append(
                TimeSlice(*each[1:3], each.cpu_charged_ns, each.cpu_sampled_ns, columns, _seconds(stats))
            )
        numbers = sorted({stack for each in found for stack in each.columns[0]})
        place = {stack: at for at, stack in enumerate(numbers)}
        return [each._replace(columns=[[place[stack] for stack in each.columns[0]], *each.columns[1:]])
                for each in found]  # fmt: skip

    def stacks(self, facts: SliceFacts) -> tuple[dict[str, Any], Columns]:
        """Return the statistics and the columns of a slice, whose samples are as many as its facts say."""
        stacks = len(self.names(facts.service).stacks.rows)
        for stats, blob in self._rows("SELECT stats, rows FROM stacks WHERE id = ?", facts.number):
            columns = unpack_columns(blob, stacks, self._budget)
            if (samples := sum(columns[1])) != facts.samples:
                raise BadInput(f"slice {facts.id}: it has {samples} samples instead of {facts.samples}")
            return unpack_json(stats, self._budget).plain_object(), columns
        raise BadInput(f"slice {facts.id}: it has no stacks")

    def is_whole(self, facts: SliceFacts) -> bool:
        """Whether the stacks of a slice can be read."""
        with suppress(BadInput):
            return bool(self.stacks(facts))
        return False

    def integrity(self) -> list[str]:
        """Return what SQLite finds to be damaged."""
        return [str(text) for (text,) in self._rows("PRAGMA integrity_check(5)") if text != "ok"]

    # -- writing, within `writing`

    def insert(self, facts: SliceFacts, report: Report) -> None:
        """Add a slice.  Raises BadInput where a number is too large."""
        names = self.names(facts.service)
        numbers = names.number_stacks(report)
        if batch := names.pack():
            self._run("INSERT INTO names (service, batch) VALUES (?, ?)", facts.service, batch)
        samples, *times = map(report.column, WEIGHTS)
        columns = (numbers, samples, *map(in_units, times))  # threads that differ by their ids alone are one
        stats = sum_stats([report.stats or {}]) or {}
        stats["problems"] = [str(text) for text in stats["problems"][:_MAX_PROBLEMS]]
        stats[SECONDS] = (report.stats or {}).get(SECONDS) or []  # merged slices have none
        self._insert(facts, stats, add_columns([columns], len(names.stacks.rows)))

    def _insert(self, facts: SliceFacts, stats: dict[str, Any], columns: Columns) -> None:
        row = as_row(facts)
        number = self._run(f"INSERT INTO slice ({_FACTS}) VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608
        self._run("INSERT INTO stacks VALUES (?, ?, ?)", number, pack_json(stats), pack_columns(columns))

    def merge(self, group: Sequence[SliceFacts], merged: SliceFacts) -> None:
        """Replace slices of one service by one of these facts."""
        stats, columns = self.sums(group)
        self.delete(group)
        self._insert(merged, stats, columns)

    def pin(self, facts: SliceFacts) -> None:
        """Let a slice be neither merged nor, for its size, deleted before others."""
        self._run("UPDATE slice SET pinned = 1 WHERE id = ?", facts.number)

    def compact(self) -> None:
        """Free the space of what was deleted, if that is much; not within `writing`."""
        [(free, pages)] = self._rows("SELECT * FROM pragma_freelist_count, pragma_page_count")
        if 8 * free > pages:
            self._run("VACUUM")

    def insert_gap(self, gap: Gap) -> None:
        """Add a time without slices."""
        self._run("INSERT INTO gap VALUES (?, ?, ?, ?)", *gap)

    def delete(self, facts: Iterable[SliceFacts]) -> None:
        """Delete slices."""
        for each in facts:
            for table in ("slice", "stacks"):
                self._run(f"DELETE FROM {table} WHERE id = ?", each.number)  # noqa: S608


def _seconds(stats: dict[str, Any]) -> tuple[int, ...]:
    """Return the CPU time in each second of a slice; empty where it is not known."""
    found = stats.get(SECONDS)
    if not isinstance(found, list) or not all(type(ms) is int and 0 <= ms < 1 << 32 for ms in found):
        return ()
    return tuple(found)
