"""Writes the files of `watch`, names them, and deletes files that are too many or too old.

The age of a file is that of the time in its name.

Invariant: a file with another label or format is never deleted (tests/watching/test_slice_files.py).
"""

import os
import re
import time
from calendar import timegm
from collections.abc import Iterator, Sequence
from contextlib import suppress
from errno import EDQUOT, ENOSPC, ENOTDIR
from math import inf

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
        """Make the directory if it is missing.  Raises SfsampleError if no file can be written in it."""
        directory = self._files.directory
        try:
            os.makedirs(directory, exist_ok=True)
            check_replaceable(self._files.free_path(), None)
        except FileExistsError:
            raise not_written(directory, os_error(ENOTDIR)) from None
        except OSError as failure:
            raise not_written(directory, failure) from None

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002 - a file has all services
        """Write a file, delete old ones; return its path.  Raises SfsampleError."""
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
    """The files of one label and format in one directory, also the files of earlier runs."""

    def __init__(self, directory: str, label: str, suffix: str) -> None:
        self.directory = directory
        self._label, self._suffix = label, suffix
        self._name = re.compile(f"{re.escape(label)}-(\\d{{8}}T\\d{{6}}Z){re.escape(suffix)}")

    def free_path(self, begin_s: float | None = None) -> str:
        """Return a path named after the begin of a slice (None: now), or after the next free second."""
        second = int(time.time() if begin_s is None else begin_s)
        while True:
            begin = utc(second, _TIME_FORMAT)
            path = os.path.join(self.directory, f"{self._label}-{begin}{self._suffix}")
            if not os.path.lexists(path):
                return path
            second += 1

    def delete_old(self, newest: str, limits: Keep) -> None:
        """Delete the files beyond the limits, but not `newest`, which was just written.  Raises OSError."""
        size, newer = os.path.getsize(newest), 1  # size and number of the newer files
        for begun_s, name in sorted(self._begins(), reverse=True):
            path = os.path.join(self.directory, name)
            if path == newest:
                continue
            size, newer = size + os.path.getsize(path), newer + 1
            is_old = limits.keep_for and time.time() - begun_s > limits.keep_for
            if is_old or newer > (limits.keep or inf) or size > (limits.keep_bytes or inf):
                os.unlink(path)

    def _begins(self) -> Iterator[tuple[int, str]]:
        """Yield the begin of each slice, in seconds since the epoch, and its file name.  Raises OSError."""
        for match in filter(None, map(self._name.fullmatch, os.listdir(self.directory))):
            with suppress(ValueError):  # no time in the name: `watch` has not made the file
                yield timegm(time.strptime(match[1], _TIME_FORMAT)), match[0]
