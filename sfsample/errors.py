"""Defines every exception that crosses a module boundary.

An expected failure of a walk is a `StopReason` value, not an exception.  Callers branch on the class, and the
modules that make system calls on `errno`; text is for people.
"""

from errno import EMFILE, ENFILE

# the help lines of errors that several packages raise
FIND_HELP = "it has ended, or never was; -n NAME finds a process by its name or command line"
FILES_HELP = "allow more: ulimit -n 1024; LimitNOFILE= in a systemd unit, --ulimit nofile= in a container"

NO_FILE_ERRNOS = (ENFILE, EMFILE)  # the limit of open files is reached, of the system or of sfsample


class SfsampleError(Exception):
    """Base of all: `exit_code` is that of the command, `help` the lines that say what the user can do."""

    exit_code = 1

    def __init__(self, what: str, *help_lines: str) -> None:
        super().__init__(what)
        self.help = help_lines


class FormatError(SfsampleError):
    """Foreign bytes are wrong: in `section`, at byte `offset` of it; the table is lost, the run goes on."""

    def __init__(self, section: str, offset: int, what: str) -> None:
        super().__init__(f"{section}+{offset:#x}: {what}")
        self.section = section
        self.offset = offset
        self.what = what


class BadInput(SfsampleError):  # noqa: N818 - reads as what happened
    """A file that should hold a profile does not; the text says where in the file and why."""


class TargetError(SfsampleError):
    """Process `pid` cannot be sampled or read: the target or the user is the problem."""

    def __init__(self, pid: int, what: str, *help_lines: str) -> None:
        super().__init__(what, *help_lines)
        self.pid = pid


class NoSuchProcess(TargetError):  # noqa: N818 - reads as what happened
    """The process does not exist, or ended before the first sample."""

    exit_code = 3


class NotPermitted(TargetError):  # noqa: N818 - reads as what happened
    """The kernel refuses access; `help` names the permission that is missing and how to get it."""

    exit_code = 4


class AlreadyTraced(NotPermitted):
    """Another tracer traces every thread; threads that it has stopped can still be read."""


class ReadFailed(TargetError):  # noqa: N818 - reads as what happened
    """A file of /proc/PID could not be read, for a reason that says nothing of the process, which stays."""


class UnsupportedTarget(TargetError):  # noqa: N818 - reads as what happened
    """The process cannot be unwound: a kernel thread, a zombie, a 32-bit program."""


class CoreError(SfsampleError):
    """The file is not a core file, or it describes no thread."""


class NoThread(SfsampleError):  # noqa: N818 - reads as what happened
    """The kernel refuses to start a thread of sfsample."""

    def __init__(self) -> None:
        super().__init__("cannot start a thread: a limit of processes or of memory is reached",
                         "allow more: ulimit -u, ulimit -v; TasksMax= and LimitAS= in a systemd unit,",
                         "--pids-limit and --memory in a container")  # fmt: skip


class NoReturn(SfsampleError):  # noqa: N818 - reads as what happened
    """A call on process `pid` (None: unknown) does not return, or a computation takes far too long.

    `holds_others`: threads of other processes stay stopped too, until the call returns or sfsample ends.
    """

    def __init__(self, pid: int | None = None, *, holds_others: bool = False) -> None:
        self.pid, self.holds_others = pid, holds_others
        super().__init__(
            f"stuck: a system call on the target, or a computation, did not end: {pid or 'unknown'}",
            "a page of the target may wait for another program (userfaultfd, FUSE, NFS)",
        )


class UsageError(SfsampleError):
    """The command line asks for something impossible."""

    exit_code = 2


class NoSpace(SfsampleError):  # noqa: N818 - reads as what happened
    """A disk is full, so that it is worth waiting."""

    def __init__(self, what: str) -> None:
        super().__init__(what, "free some space")
