"""Answers a trigger of `watch`: pins the last slices, takes a dump, then samples more often for a while.

A child process, `sfsample dump`, takes the dump, because a dump needs memory and time, and may fail.  Only
this user can read the files, because a dump contains command lines, addresses and paths.
"""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sfsample.core.quantities import counted
from sfsample.errors import SfsampleError
from sfsample.recording.options import RecordOptions
from sfsample.watching.options import Keep, WatchOptions
from sfsample.watching.own_program import dump_words, own_program
from sfsample.watching.program import Say, Sink
from sfsample.watching.slice_files import SliceFiles
from sfsample.watching.triggers import Fired

_BEFORE_S = 120.0  # time before a trigger whose slices are pinned
_CLOSER_S, _CLOSER_HZ = 30.0, 99.0  # length and rate of the slice after a trigger
_CLOSER_SHARE = 0.1  # share of a CPU for the samples of that slice: the usual 3 % would leave few ticks
_MAX_DUMPS = 100  # dumps that are kept of a target
_MAX_PROCESSES = 20  # processes in a dump
_PATIENCE_S = 60.0  # time after which the child is killed; its target threads then run on
_ENDED_WELL = (0, 5)  # exit codes; 5: a thread could not be captured, as the dump says

# records a slice of so many seconds; returns its ticks per second, or None if the slice is lost
Record = Callable[[float, RecordOptions], float | None]


class Response:
    """Answers triggers; `files` has the dumps."""

    def __init__(self, options: WatchOptions, files: SliceFiles, sinks: Sequence[Sink], say: Say) -> None:
        self._options, self._files, self._sinks, self._say = options, files, sinks, say

    def answer(self, fired: Fired, find: Callable[[], list[int]], record: Record) -> None:
        """Pin, dump, record; say the outcome.  `find` returns the process ids, or raises SfsampleError."""
        options, pinned = self._options.record, self._pin(fired)
        try:
            dump = f"dump in {self._dump(find())}"
        except (SfsampleError, OSError) as failure:
            dump = f"no dump: {failure}"
        begin_s, hz = time.monotonic(), max(_CLOSER_HZ, options.rate)
        share = max(_CLOSER_SHARE, options.max_overhead or 0.0)
        labels = (*options.labels, ("trigger", fired.name))
        taken = record(_CLOSER_S, replace(options, rate=hz, labels=labels, max_overhead=share))
        length_s = time.monotonic() - begin_s
        self._pin(fired)
        if not self._options.quiet:
            closer = f"{length_s:.0f} s at {taken or 0:.0f} of {hz:g} Hz"
            closer = "no slice kept since" if taken is None else closer
            self._say(f"{fired}: {counted(pinned, 'slice')} pinned, {closer}, {dump}")

    def _dump(self, pids: Sequence[int]) -> str:
        path = self._files.free_path()
        words = dump_words(pids[:_MAX_PROCESSES], path, self._options.record)
        try:
            done = subprocess.run(own_program(*words), umask=0o077, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=_PATIENCE_S,
                                  check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SfsampleError(f"the dump took more than {_PATIENCE_S:.0f} s") from None
        if done.returncode not in _ENDED_WELL:
            said = done.stderr.decode("utf-8", "replace").partition("\n")[0]
            raise SfsampleError(said.removeprefix("sfsample: ") or "the child was killed")
        keep_for = self._options.keep.of_history().keep_for
        self._files.delete_old(path, Keep(keep=_MAX_DUMPS, keep_for=keep_for))
        return path

    def _pin(self, fired: Fired) -> int:
        """Pin the slices since two minutes before a trigger; return their number."""
        last_s, counts = _BEFORE_S + max(0.0, time.time() - fired.at_s), [0]
        for sink in self._sinks:
            try:
                counts.append(sink.pin(last_s))
            except (SfsampleError, OSError) as failure:
                self._say(f"not pinned: {failure}", *getattr(failure, "help", ()))
        return max(counts)
