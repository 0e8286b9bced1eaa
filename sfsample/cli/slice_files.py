"""Names the files of `watch`, and deletes those that are too many or too old.

A name has the time of the clock, which may be set meanwhile.  So the age of a file that `watch` knows is
measured by a clock that is never set: setting the time deletes no new file, and keeps no old one.

Invariant: a file of another label or format is never deleted (tests/cli/test_slice_files.py).
"""

import os
import re
import time
from calendar import timegm
from contextlib import suppress

_TIME_FORMAT = "%Y%m%dT%H%M%SZ"


class SliceFiles:
    """The slices of one label and format in one directory, also those of earlier runs."""

    def __init__(self, directory: str, label: str, suffix: str) -> None:
        self.directory = directory
        self._label, self._suffix = label, suffix
        self._name = re.compile(f"{re.escape(label)}-(\\d{{8}}T\\d{{6}}Z){re.escape(suffix)}")
        self._begun_s: dict[str, float] = {}  # by file name; CLOCK_BOOTTIME
        with suppress(OSError):  # it is missing, or cannot be read; `delete_old` says that
            self._list()

    def free_path(self) -> str:
        """Name a slice after the time; when the clock was set back, after the next second that is free."""
        second = int(time.time())
        while True:
            begin = time.strftime(_TIME_FORMAT, time.gmtime(second))
            path = os.path.join(self.directory, f"{self._label}-{begin}{self._suffix}")
            if not os.path.lexists(path):
                return path
            second += 1

    def delete_old(self, newest: str, keep: int | None, keep_for_s: float | None) -> None:
        """Delete all but `keep` slices, and those that are older; `newest` has just been written.

        Raises OSError.
        """
        now_s = _boot_time_s()
        self._begun_s[os.path.basename(newest)] = now_s
        self._list()
        names = sorted(self._begun_s, key=lambda name: (self._begun_s[name], name))
        too_many = set(names[:-keep] if keep else ())
        for name in names:
            if name in too_many or (keep_for_s and now_s - self._begun_s[name] > keep_for_s):
                os.unlink(os.path.join(self.directory, name))

    def _list(self) -> None:
        """Note when each slice began; of one that is new here, its name says it.  Raises OSError."""
        now_s, clock_s, known = _boot_time_s(), time.time(), self._begun_s
        self._begun_s = {}
        for match in filter(None, map(self._name.fullmatch, os.listdir(self.directory))):
            with suppress(ValueError):  # no time, so `watch` has not made the file
                age_s = clock_s - timegm(time.strptime(match[1], _TIME_FORMAT))
                self._begun_s[match[0]] = known.get(match[0], now_s - max(0.0, age_s))


def _boot_time_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
