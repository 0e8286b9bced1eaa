"""One file of a history: an SQLite database with the slices of one UTC day and one tier.

The tables hold facts in columns, and stacks as blobs (history/blobs.py).  A commit is in the write-ahead log
before it is acknowledged, so a writer that is killed loses the slice that it was writing and no other.

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
from typing import Any, NamedTuple
from urllib.parse import quote

from sfsample.errors import BadInput
from sfsample.history.blobs import Names, pack_json, pack_rows, unpack_json, unpack_rows
from sfsample.history.facts import COLUMNS, TIERS, Gap, SliceFacts, as_row, read_facts, read_gap
from sfsample.report.budget import Budget
from sfsample.report.merge import sum_stats
from sfsample.report.report import WEIGHTS, Report

DAY_S = 86400
_VERSION = 1  # of the tables
_NAME = re.compile(r"(\d{4}-\d\d-\d\d)-(1m|10m|1h)\.sqlite", re.ASCII)
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
    f"CREATE TABLE slice (id INTEGER PRIMARY KEY, {_TYPED_FACTS})",
    "CREATE TABLE stacks (id INTEGER PRIMARY KEY, stats BLOB, rows BLOB)",  # of the slice with this id
    "CREATE TABLE names (id INTEGER PRIMARY KEY, service TEXT, batch BLOB)",
    "CREATE TABLE gap (begin_s REAL, end_s REAL, service TEXT, why TEXT)",
    "CREATE TABLE replaced (file TEXT)",  # see history/tiers.py
    "CREATE TABLE identity (file TEXT)",
)


class FileName(NamedTuple):
    """Which file of a history: the day (since the epoch) and the tier."""

    directory: str
    day: int
    tier: str

    @property
    def stem(self) -> str:
        """The name without its suffix."""
        return f"{time.strftime('%Y-%m-%d', time.gmtime(self.day * DAY_S))}-{self.tier}"

    @property
    def path(self) -> str:
        """The path."""
        return os.path.join(self.directory, f"{self.stem}.sqlite")

    @property
    def end_s(self) -> int:
        """When its day is over."""
        return (self.day + 1) * DAY_S


def file_names(directory: str) -> list[FileName]:
    """Return the files of a history, the oldest first, of a day the coarse tier first.  Raises OSError."""
    found = []
    for match in filter(None, map(_NAME.fullmatch, os.listdir(directory))):
        with suppress(ValueError):
            day = timegm(time.strptime(match[1], "%Y-%m-%d")) // DAY_S
            found.append(FileName(directory, day, match[2]))
    return sorted(found, key=lambda name: (name.day, -TIERS[name.tier]))


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
        try:  # a reader may have to complete what a writer that was killed has begun
            self._db = sqlite3.connect(f"file:{quote(path)}?mode=rw", uri=True, timeout=_BUSY_S,
                                       isolation_level=None, check_same_thread=False)  # fmt: skip
        except sqlite3.OperationalError:
            os.stat(path)  # FileNotFoundError: it has just been replaced
            raise
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
            if self.path.endswith("-1m.sqlite"):  # others are written once, by one process, and renamed
                self._run("PRAGMA journal_mode=WAL")
            self._run("PRAGMA synchronous=NORMAL")
            with self.writing():
                if self._version() == 0:
                    for statement in _SCHEMA:
                        self._run(statement)
                    self._run("INSERT INTO identity VALUES (?)", os.urandom(16).hex())
                    self._run(f"PRAGMA user_version={_VERSION}")
        else:
            self._run("PRAGMA query_only=ON")
        version = self._version()
        if version > _VERSION:
            raise BadInput(f"a newer sfsample has written it (version {version} of the tables)")
        tables = {sql for (sql,) in self._rows("SELECT sql FROM sqlite_master LIMIT 100")}
        self.is_empty = not tables  # its writer was killed before the first commit
        if tables not in ({*_SCHEMA}, set()):
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
                raise BadInput(f"damaged: {failure}") from None
            raise

    def _rows(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a query; what makes it endless or impossible is damage."""
        steps = iter(range(_MAX_STEPS))
        self._db.set_progress_handler(lambda: next(steps, None) is None, _STEP)
        try:
            with closing(self._db.execute(query, values)) as cursor:
                yield from cursor
        except sqlite3.Error as failure:
            raise BadInput(f"damaged: {failure}") from None
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

    # -- reading

    def facts(self, first: int = 0) -> Iterator[SliceFacts]:
        """Yield the facts of all slices, or of those from a number on, in the order of these."""
        stem = os.path.basename(self.path).removesuffix(".sqlite")
        query = f"SELECT id, {_FACTS} FROM slice WHERE id >= ? ORDER BY id LIMIT {_MAX_SLICES}"  # noqa: S608 - constants
        for number, *row in () if self.is_empty else self._rows(query, first):
            yield read_facts(f"{stem}.{number}", row)

    def gaps(self) -> list[Gap]:
        """Return the times without slices."""
        query = f"SELECT begin_s, end_s, service, why FROM gap LIMIT {_MAX_SLICES}"  # noqa: S608 - constants
        return [] if self.is_empty else [*map(read_gap, self._rows(query))]

    def texts(self, table: str) -> set[str]:
        """Return what `identity` or `replaced` has."""
        query = f"SELECT file FROM {table} LIMIT 100000"  # noqa: S608 - one of two words
        return set() if self.is_empty else {str(text) for (text,) in self._rows(query)}

    def names(self, service: str) -> Names:
        """Return the frames and stacks of a service."""
        if service not in self._names:
            names = Names()
            for (batch,) in self._rows("SELECT batch FROM names WHERE service = ? ORDER BY id", service):
                names.unpack(batch, self._budget)
            self._names[service] = names
        return self._names[service]

    def report(self, facts: Sequence[SliceFacts]) -> Report:
        """Return one report of slices of one service that have the same weights."""
        first, stats = facts[0], []
        names = self.names(first.service)
        columns = [[0] * len(names.stacks.rows) for _ in WEIGHTS]
        samples, wall_ns, cpu_ns = columns
        seen = bytearray(len(names.stacks.rows))
        for each in facts:
            found, rows = self.stacks(each)
            stats.append(found)
            for stack, *weights in zip(*rows, strict=True):
                seen[stack] = 1
                samples[stack] += weights[0]
                wall_ns[stack] += weights[1]
                cpu_ns[stack] += weights[2]
        kept = [WEIGHTS.index(name) for name in first.weights]
        sums = {stack: tuple(columns[at][stack] for at in kept) for stack, has in enumerate(seen) if has}
        merged = sum_stats(stats) or {}
        merged["problems"] = [*dict.fromkeys(map(str, merged["problems"]))]
        durations = [each.duration_ns for each in facts]
        rates, hosts = {each.rate_hz for each in facts}, {each.host for each in facts}
        return names.report(sums, first.weights)._replace(
            started_ns=round(min(each.begin_s for each in facts) * 1e9) or None,
            duration_ns=None if None in durations else sum(filter(None, durations)),
            rate_hz=rates.pop() if len(rates) == 1 else None,
            host=hosts.pop() if len(hosts) == 1 else None,
            stats=merged,
        )

    def stacks(self, facts: SliceFacts) -> tuple[dict[str, Any], Sequence[Sequence[int]]]:
        """Return the statistics and the columns of a slice, whose samples are as many as its facts say."""
        number, stacks = int(facts.id.rpartition(".")[2]), len(self.names(facts.service).stacks.rows)
        for stats, blob in self._rows("SELECT stats, rows FROM stacks WHERE id = ?", number):
            rows = unpack_rows(blob, stacks, self._budget)
            if sum(rows[1]) != facts.samples:
                raise BadInput(f"slice {facts.id}: it has {sum(rows[1])} samples instead of {facts.samples}")
            return unpack_json(stats, self._budget).plain_object(), rows
        raise BadInput(f"slice {facts.id}: it has no stacks")

    def integrity(self) -> list[str]:
        """Return what SQLite finds to be damaged."""
        return [str(text) for (text,) in self._rows("PRAGMA integrity_check(5)") if text != "ok"]

    # -- writing, within `writing`

    def insert(self, facts: SliceFacts, report: Report) -> None:
        """Add a slice.  Raises BadInput where a number is too large."""
        names = self.names(facts.service)
        numbers = names.number_stacks(report)
        sums: dict[int, tuple[int, int, int]] = {}  # threads that differ by their ids alone are one
        for stack, *more in zip(numbers, *map(report.column, WEIGHTS), strict=True):
            before = sums.get(stack, (0, 0, 0))
            sums[stack] = (before[0] + more[0], before[1] + more[1], before[2] + more[2])
        if batch := names.pack():
            self._run("INSERT INTO names (service, batch) VALUES (?, ?)", facts.service, batch)
        row = as_row(facts)
        number = self._run(f"INSERT INTO slice ({_FACTS}) VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608
        stats = sum_stats([report.stats or {}]) or {}
        stats["problems"] = [str(text) for text in stats["problems"][:_MAX_PROBLEMS]]
        self._run("INSERT INTO stacks VALUES (?, ?, ?)", number, pack_json(stats),
                  pack_rows((stack, *weights) for stack, weights in sums.items()))  # fmt: skip

    def compact(self) -> None:
        """Free the space of what was deleted; not within `writing`."""
        self._run("VACUUM")

    def insert_gaps(self, gaps: Iterable[Gap]) -> None:
        """Add times without slices."""
        for gap in gaps:
            self._run("INSERT INTO gap VALUES (?, ?, ?, ?)", *gap)

    def delete(self, facts: Iterable[SliceFacts], gaps: Iterable[Gap]) -> None:
        """Delete slices and gaps."""
        for each in facts:
            for table in ("slice", "stacks"):
                self._run(f"DELETE FROM {table} WHERE id = ?", int(each.id.rpartition(".")[2]))  # noqa: S608
        for gap in gaps:
            self._run("DELETE FROM gap WHERE begin_s = ? AND end_s = ? AND service = ? AND why = ?", *gap)

    def insert_replaced(self, files: Iterable[str]) -> None:
        """Note which files this one replaces."""
        for file in files:
            self._run("INSERT INTO replaced VALUES (?)", file)
