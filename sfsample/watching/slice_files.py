"""Writes and names the files of `watch`, and deletes files that are too many, too large or too old.

A file name contains the time of the system clock, which may be set later.  So `watch` measures the age of its
files by CLOCK_BOOTTIME, which is never set.

Invariant: a file with another label or format is never deleted (tests/watching/test_slice_files.py).
"""

import os
import re
import time
from calendar import timegm
from collections.abc import Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC, ENOTDIR
from itertools import count

from sfsample import api
from sfsample.core.filesystem import check_replaceable, os_error, whole_file
from sfsample.core.foreign import utc
from sfsample.errors import NoSpace, SfsampleError
from sfsample.history.facts import Slice
from sfsample.report.suffixes import suffix_of
from sfsample.watching.options import Files, Keep
from sfsample.watching.program import Say, Sink, Trouble

_TIME_FORMAT = "%Y%m%dT%H%M%SZ"


class FileSink(Sink):
    """Writes each slice to a file in --output-dir.  It ignores gaps (`add_gap`) and `pin`."""

    def __init__(self, directory: str, how: Files, keep: Keep, label: str, say: Say) -> None:
        self._how, self._keep = how, keep
        self._files = SliceFiles(directory, label, suffix_of(how.format))
        self._not_deleted = Trouble(say, "older files stay")

    def prepare(self) -> None:
        """Make the directory if it is missing.  Raises SfsampleError if the directory is not writable."""
        directory = self._files.directory
        try:
            os.makedirs(directory, exist_ok=True)
            check_replaceable(self._files.free_path(), None)
        except FileExistsError:
            raise not_written(directory, os_error(ENOTDIR)) from None
        except OSError as failure:
            raise not_written(directory, failure) from None

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002 - a file has all services
        """Write a file, delete old files; return the path of the new file.  Raises SfsampleError."""
        data = api.render(whole.report, self._how.format, threads=self._how.threads)
        self.prepare()  # the directory may have been removed
        path = self._files.free_path(whole.begin_s)
        try:
            with whole_file(path, 0o666) as file:
                file.write(data)
        except OSError as failure:
            raise not_written(self._files.directory, failure) from None
        try:
            self._files.delete_old(path, self._keep)
        except OSError as failure:
            self._not_deleted.met(f"cannot delete: {failure.filename}: {failure.strerror}")
        return path


def not_written(directory: str, failure: OSError) -> SfsampleError:
    """Return the error for a file that cannot be written."""
    what = f"cannot write: {directory or repr('')}: {failure.strerror}"
    is_full = failure.errno in (ENOSPC, EDQUOT)
    return NoSpace(what, "free some space") if is_full else SfsampleError(what, "choose another --output-dir")


class SliceFiles:
    """The files of one label and format in one directory, with files of earlier runs."""

    def __init__(self, directory: str, label: str, suffix: str) -> None:
        self.directory = directory
        self._label, self._suffix = label, suffix
        self._name = re.compile(f"{re.escape(label)}-(\\d{{8}}T\\d{{6}}Z){re.escape(suffix)}")
        self._begun_s: dict[str, float] = {}  # file name -> begin of the slice (CLOCK_BOOTTIME)
        with suppress(OSError):  # `delete_old` reports a missing or unreadable directory
            self._list()

    def free_path(self, begin_s: float | None = None) -> str:
        """Return an unused path; its name has the second in which a slice begins (None: now), or the next."""
        first = int(time.time() if begin_s is None else begin_s)
        times = (utc(second, _TIME_FORMAT) for second in count(first))
        paths = (os.path.join(self.directory, f"{self._label}-{begin}{self._suffix}") for begin in times)
        return next(path for path in paths if not os.path.lexists(path))

    def delete_old(self, newest: str, limits: Keep) -> None:
        """Delete the files beyond the limits, but never `newest`, which was just written.  Raises OSError."""
        now_s = _boot_time_s()
        self._begun_s[os.path.basename(newest)] = now_s
        self._list()
        last = os.path.basename(newest)
        names = sorted(self._begun_s, key=lambda name: (name == last, self._begun_s[name], name))
        too_many = set(names[: -limits.keep] if limits.keep else ())
        size = 0
        for name in reversed(names if limits.keep_bytes else ()):
            size += os.path.getsize(os.path.join(self.directory, name))
            if size > (limits.keep_bytes or 0) and name != last:
                too_many.add(name)
        for name in names:
            if name in too_many or (limits.keep_for and now_s - self._begun_s[name] > limits.keep_for):
                os.unlink(os.path.join(self.directory, name))

    def _list(self) -> None:
        """Note when the slice of each file began; a new file has this time in its name.  Raises OSError."""
        now_s, clock_s, known = _boot_time_s(), time.time(), self._begun_s
        self._begun_s = {}
        for match in filter(None, map(self._name.fullmatch, os.listdir(self.directory))):
            with suppress(ValueError):  # no time in the name: `watch` did not make this file
                age_s = clock_s - timegm(time.strptime(match[1], _TIME_FORMAT))
                self._begun_s[match[0]] = known.get(match[0], now_s - max(0.0, age_s))


def _boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
