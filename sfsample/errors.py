"""Every exception that crosses a module boundary.

    SfsampleError
      FormatError            foreign bytes are wrong: the table is lost, the run goes on
      BadInput               a file that should hold a profile does not: where in it, and why
      TargetError            the target or the user is the problem: one line and help
        NoSuchProcess        exit 3
        NotPermitted         exit 4
          AlreadyTraced
        UnsupportedTarget    exit 1
      CoreError              exit 1: a core file cannot be read
      NoThread               exit 1: a limit keeps us from starting one
      UsageError             exit 2

Law: an expected failure of a walk is a `StopReason` value, never an exception.  Callers branch on the
class (and the doors on `errno`), never on text.  `help` holds the lines that tell the user what to do.
"""

NO_FILES = (23, 24)  # ENFILE, EMFILE: the errno module is not worth its import to `--help`
FIND_IT = "it has ended, or never was; -n NAME finds a process by its name or command line"
MORE_FILES = "allow more: ulimit -n 1024; LimitNOFILE= in a systemd unit, --ulimit nofile= in a container"


class SfsampleError(Exception):
    """Base of all; `exit_code` is what the command line returns for it."""

    exit_code = 1

    def __init__(self, what: str, *help_lines: str) -> None:
        super().__init__(what)
        self.help = help_lines


class FormatError(SfsampleError):
    """Foreign bytes are wrong: in which section, at which byte offset of it, and what."""

    def __init__(self, section: str, offset: int, what: str) -> None:
        super().__init__(f"{section}+{offset:#x}: {what}")
        self.section = section
        self.offset = offset
        self.what = what


class BadInput(SfsampleError):  # noqa: N818 - reads as what happened
    """A file that should hold a profile does not; the text names the place in it."""


class TargetError(SfsampleError):
    """A process cannot be looked at."""

    def __init__(self, pid: int, what: str, *help_lines: str) -> None:
        super().__init__(what, *help_lines)
        self.pid = pid


class NoSuchProcess(TargetError):  # noqa: N818 - reads as what happened
    """It does not exist, or ended before the first sample."""

    exit_code = 3


class NotPermitted(TargetError):  # noqa: N818 - reads as what happened
    """The kernel refuses; `help` names the gate and the way through it."""

    exit_code = 4


class AlreadyTraced(NotPermitted):
    """Another tracer holds every thread; where it has stopped them, they can still be read."""


class UnsupportedTarget(TargetError):  # noqa: N818 - reads as what happened
    """A kernel thread, a zombie, a 32-bit program: nothing we could unwind."""


class CoreError(SfsampleError):
    """A core file is none, or tells of no thread."""


class NoThread(SfsampleError):  # noqa: N818 - reads as what happened
    """The kernel gives us no thread."""

    def __init__(self) -> None:
        super().__init__("cannot start a thread: a limit of processes or of memory is reached",
                         "allow more: ulimit -u, ulimit -v; TasksMax= and LimitAS= in a systemd unit,",
                         "--pids-limit and --memory in a container")  # fmt: skip


class UsageError(SfsampleError):
    """The command line asks for something that cannot be."""

    exit_code = 2
