"""Writes the result of a command to a file or to stdout, suggests the next step, and opens the result.

stdout carries only the result.  A file is written completely or not at all (tests/cli/test_output_file.py).
"""

import os
import re
import stat
import sys
from errno import EBADF, EISDIR, ENOENT, ENOSPC
from shlex import quote
from typing import TYPE_CHECKING

from sfsample.cli.terminal import say, silence
from sfsample.core.filesystem import check_replaceable, os_error, whole_file
from sfsample.errors import SfsampleError

if TYPE_CHECKING:
    from sfsample.cli.record_options import ProfileOutput
    from sfsample.report.report import Report

_STREAM_FDS = {"/dev/stdout": "1", "/dev/stderr": "2"}
_OPEN_FD = re.compile(r"/dev/std(?:out|err)|/(?:dev|proc/self)/fd/(\d{1,9})", re.ASCII)

_REMEDIES = {
    EBADF: "stdout is closed; -o FILE writes a file",
    EISDIR: "name a file, not a directory",
    ENOENT: "make the directory, or choose another file",
    ENOSPC: "free some space, or choose another file",
}
_NEXT = {  # next step, by format
    "html": "open it in a browser, or use --open",
    "svg": "open it in a browser, or use --open",
    "speedscope": "open it with speedscope",
    "firefox": "load it into the Firefox Profiler",
    "pprof": "go tool pprof -http=: FILE",
    "json": "sfsample convert FILE -o FILE.html draws it",
    "folded": "sfsample convert FILE -o FILE.html draws it",
}


class Output:
    """The destination of a result.  `Output(path)` checks the path before the work: a mistake shows early.

    Only `write` creates a file, so an interrupted command leaves no file behind.  A path like /dev/stdout
    means an open file; `write` writes at the current offset of this file (`>> log`).  Raises SfsampleError if
    the destination cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.file = ""  # path of the regular file that `write` replaces
        self._path = path
        self._fd = -1  # descriptor of a device, a FIFO or an open file; a rename would replace these
        try:
            self._check(path)
        except OSError as failure:
            raise _unwritable(path, failure) from None

    def _check(self, path: str) -> None:
        if path == "-":
            if sys.stdout is None:
                raise os_error(EBADF)
            return
        if not path or path.endswith("/"):
            raise os_error(EISDIR if path else ENOENT)
        if open_fd := _OPEN_FD.fullmatch(path):
            self._fd = os.dup(int(_STREAM_FDS.get(path) or open_fd[1]))
            return
        try:
            old = os.stat(path)
        except FileNotFoundError:
            old = None
        if old is None or stat.S_ISREG(old.st_mode):
            self.file = os.path.realpath(path)
            check_replaceable(self.file, old)
        else:
            self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, result: str | bytes) -> None:
        """Write the whole result."""
        data = result.encode("utf-8", "replace") if isinstance(result, str) else result
        try:
            if self.file:
                with whole_file(self.file, 0o666, keep=True) as file:
                    file.write(data)
            elif self._fd >= 0:
                with open(self._fd, "wb") as file:
                    file.write(data)
            else:
                _write_stdout(data)
        except OSError as failure:
            if self._path == "-" and isinstance(failure, BrokenPipeError):
                raise
            if failure.filename2:  # only the rename failed
                raise SfsampleError(
                    f"cannot rename: {failure.filename} to {failure.filename2}: {failure.strerror}",
                    f"the result is in {failure.filename}",
                ) from None
            raise _unwritable(self._path, failure) from None


def _write_stdout(data: bytes) -> None:
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
    except OSError:
        silence(sys.stdout)
        raise


def _unwritable(path: str, failure: OSError) -> SfsampleError:
    destination = "standard output" if path == "-" else path or "''"
    return SfsampleError(f"cannot write: {destination}: {failure.strerror}",
                         _REMEDIES.get(failure.errno or 0, "choose another file"))  # fmt: skip


def as_asked(report: "Report", output: "ProfileOutput") -> "Report":
    """Return the report with the frames that --by adds, and the marks of --mark-python."""
    from sfsample.report.naming import with_python_marks  # other commands write no report
    from sfsample.report.waits import by_wait

    report = by_wait(report) if output.by else report
    return with_python_marks(report) if output.mark_python else report


def say_written(options: "ProfileOutput", output: Output, *, quiet: bool) -> None:
    """Unless `quiet`, print the path of the result and the next step.  With --open, open a browser."""
    path = options.path
    if output.file and not quiet:
        step = _NEXT[options.format].replace("FILE.html", quote(f"{path}.html"))
        say(f"written {path}: {step.replace('FILE', quote(path))}")
    if not options.open:
        return
    if not os.geteuid():  # PATH or BROWSER could make root execute any program
        say(f"no browser is started as root: open {path} yourself")
        return
    import webbrowser  # imported only for --open
    from pathlib import Path

    if not webbrowser.open(Path(output.file).as_uri()):
        say(f"no browser was found: open {path} yourself")
