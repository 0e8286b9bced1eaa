"""What `watch` does when a trigger fires: it pins the last slices, takes a dump, looks closer for a while.

The dump is made by `sfsample dump`, a child process: it needs memory and time for names, and may fail.  Only
this user can read the files, as a dump has command lines, addresses and paths.
"""

import subprocess
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence

from sfsample.cli.own_program import own_program
from sfsample.cli.sinks import Sink
from sfsample.cli.slice_files import SliceFiles
from sfsample.cli.triggers import Fired
from sfsample.cli.trouble import say_at
from sfsample.errors import SfsampleError

_BEFORE_S = 120.0  # slices of this time before a trigger are pinned
_CLOSER_S, _CLOSER_HZ = 30.0, 99.0  # how long, and how often a second, one looks afterwards
_CLOSER_SHARE = 0.1  # of a CPU that samples may take meanwhile: with the usual 3 % few ticks would be left
_MAX_DUMPS = 100  # of a target
_MAX_PROCESSES = 20  # in a dump
_KEEP_FOR_S = 90 * 86400.0  # without --keep-for
_PATIENCE_S = 60.0  # for the child, which then is killed; its targets go on
_ENDED_WELL = (0, 5)  # 5: a thread could not be captured, which the dump says

# a slice of so many seconds, with other flags; returns how many ticks a second it has taken, None: it is lost
Record = Callable[[float, Mapping[str, object]], float | None]


class Response:
    """Answers triggers; dumps are the files LABEL-TIME.dump.txt in a directory."""

    def __init__(self, arguments: Namespace, directory: str, label: str, sinks: Sequence[Sink]) -> None:
        self._arguments, self._sinks = arguments, sinks
        self._files = SliceFiles(directory, label, ".dump.txt")

    def answer(self, fired: Fired, find: Callable[[], list[int]], record: Record) -> None:
        """Pin, dump, record; say what came of it.

        `find` returns the process ids, or raises SfsampleError.
        """
        flags, pinned = self._arguments, self._pin(fired)
        try:
            dump = f"dump in {self._dump(find())}"
        except (SfsampleError, OSError) as failure:
            dump = f"no dump: {failure}"
        begin_s, hz = time.monotonic(), max(_CLOSER_HZ, flags.rate)
        share = max(_CLOSER_SHARE, flags.max_overhead)
        labels = [*flags.labels, ("trigger", fired.name)]
        taken = record(_CLOSER_S, {"rate": hz, "labels": labels, "max_overhead": share})
        length_s = time.monotonic() - begin_s
        self._pin(fired)
        if not flags.quiet:
            slices = f"{pinned} slice{'s' * (pinned != 1)}"
            closer = f"{length_s:.0f} s at {taken or 0:.0f} of {hz:g} Hz"
            closer = "no slice kept since" if taken is None else closer
            say_at(f"{fired}: {slices} pinned, {closer}, {dump}")

    def _dump(self, pids: Sequence[int]) -> str:
        """Dump processes; return the path.  Raises SfsampleError, OSError."""
        flags, path = self._arguments, self._files.free_path()
        words = ["dump", "-p", ",".join(map(str, pids[:_MAX_PROCESSES])), "-q", "-o", path,
                 f"--unwind={','.join(flags.unwind)}", *(f"--debug-dir={each}" for each in flags.debug_dir),
                 *([] if flags.stop else ["--no-stop"])]  # fmt: skip
        try:
            done = subprocess.run(own_program(*words), umask=0o077,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, timeout=_PATIENCE_S, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            raise SfsampleError(f"it took more than {_PATIENCE_S:.0f} s") from None
        if done.returncode not in _ENDED_WELL:
            said = done.stderr.decode("utf-8", "replace").partition("\n")[0]
            raise SfsampleError(said.removeprefix("sfsample: ") or "it was ended")
        self._files.delete_old(path, _MAX_DUMPS, flags.keep_for or _KEEP_FOR_S)
        return path

    def _pin(self, fired: Fired) -> int:
        """Pin the slices of two minutes before a trigger, and those since; return how many."""
        last_s, counts = _BEFORE_S + max(0.0, time.time() - fired.at_s), [0]
        for sink in self._sinks:
            try:
                counts.append(sink.pin(last_s))
            except (SfsampleError, OSError) as failure:
                say_at(f"not pinned: {failure}", *getattr(failure, "help", ()))
        return max(counts)
