"""Defines every exception that crosses a module boundary.

A stack walk that ends early raises nothing: its `StopReason` has the reason.  Callers branch on the class of
an exception, never on its text.  Modules that make system calls also branch on `errno`.
"""

from errno import EMFILE, ENFILE

# help lines of errors that several packages raise
FIND_HELP = "the process has ended, or never existed; -n NAME finds a process by its name or command line"
FILES_HELP = "allow more: ulimit -n 1024; LimitNOFILE= in a systemd unit, --ulimit nofile= in a container"

NO_FILE_ERRNOS = (ENFILE, EMFILE)  # errno values: the system, or sfsample, has too many open files


class SfsampleError(Exception):
    """The base class of all errors.  The lines of `help` say what the user can do."""

    exit_code = 1  # exit code of the command

    def __init__(self, what: str, *help_lines: str) -> None:
        super().__init__(what)
        self.help = help_lines


class FormatError(SfsampleError):
    """Bytes of a file or of the target are invalid, at `offset` in `section`; sfsample ignores the bytes."""

    def __init__(self, section: str, offset: int, what: str) -> None:
        super().__init__(f"{section}+{offset:#x}: {what}")
        self.section = section
        self.offset = offset
        self.what = what


class BadInput(SfsampleError):  # noqa: N818 - the name says what happened
    """A file contains no profile, or a process has a Python of an unknown version."""


class TargetError(SfsampleError):
    """Process `pid` cannot be sampled or read, because of its own state or of the user's request."""

    def __init__(self, pid: int, what: str, *help_lines: str) -> None:
        super().__init__(what, *help_lines)
        self.pid = pid


class NoSuchProcess(TargetError):  # noqa: N818 - the name says what happened
    """The process does not exist, or ended before the first sample."""

    exit_code = 3


class NotPermitted(TargetError):  # noqa: N818 - the name says what happened
    """The kernel refuses access; `help` names the permission that is missing and how to get it."""

    exit_code = 4


class AlreadyTraced(NotPermitted):
    """Another process traces every thread.  sfsample can still read threads that are stopped."""


class ReadFailed(TargetError):  # noqa: N818 - the name says what happened
    """sfsample lacks memory or descriptors to read a file of /proc/PID.  The process itself goes on."""


class UnsupportedTarget(TargetError):  # noqa: N818 - the name says what happened
    """sfsample cannot unwind this process: it is a kernel thread, a zombie or a 32-bit program."""


class CoreError(SfsampleError):
    """A file is not a core file, or it describes no thread."""


class NoThread(SfsampleError):  # noqa: N818 - the name says what happened
    """The kernel refuses to start a thread of sfsample."""

    def __init__(self) -> None:
        super().__init__("cannot start a thread: a limit of processes or of memory is reached",
                         "allow more: ulimit -u, ulimit -v; TasksMax= and LimitAS= in a systemd unit,",
                         "--pids-limit and --memory in a container")  # fmt: skip


class NoReturn(SfsampleError):  # noqa: N818 - the name says what happened
    """A system call on process `pid` (None: unknown) does not return, or a computation takes far too long.

    `holds_others`: threads of other processes also stay stopped until the call returns or sfsample ends.
    """

    def __init__(self, pid: int | None = None, *, holds_others: bool = False) -> None:
        self.pid, self.holds_others = pid, holds_others
        super().__init__(
            f"stuck: a system call on the target, or a computation, did not end: {pid or 'unknown'}",
            "a page of the target may wait for another program (userfaultfd, FUSE, NFS)",
        )


class UsageError(SfsampleError):
    """The command line has a mistake."""

    exit_code = 2


class NoSpace(SfsampleError):  # noqa: N818 - the name says what happened
    """A disk is full.  A later attempt may succeed."""
