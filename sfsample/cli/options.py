"""Defines what each command is asked to do: a value, which `parse` returns and `run` of its module takes.

A field has the name of the flag's `dest`, and the default of the flag.
"""

from dataclasses import dataclass
from typing import Literal

from sfsample.core.walk_limits import DEFAULT_ORDER, MAX_FRAMES
from sfsample.dumping.options import DumpOptions
from sfsample.errors import UsageError
from sfsample.history import Retention
from sfsample.process.target import Target
from sfsample.recording.options import RecordOptions
from sfsample.symbolize.options import NameOptions
from sfsample.watching.options import Push, WatchOptions

CHOSEN_S = 3600.0  # the time from --at on, without --for


@dataclass(frozen=True, kw_only=True)
class Command:
    """The base of all; each other command is that of its name."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the result is written."""

    path: str = "-"
    format: str = ""  # `parse` replaces "" by the one that the suffix of the path means


@dataclass(frozen=True, kw_only=True)
class ProfileOutput(OutputOptions):
    """Where a profile is written, and how it looks."""

    open: bool = False  # in a browser
    threads: bool = False  # the first frame is name/TID
    mark_python: bool = False


@dataclass(frozen=True, kw_only=True)
class NameFlags(NameOptions):
    """How functions are named, and whether debug files are fetched."""

    debuginfod: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordCommand(Command):
    """What `record` is asked to do."""

    target: Target = Target()
    program: tuple[str, ...] | None = None  # the words behind --
    options: RecordOptions = RecordOptions()
    duration: float | None = None  # seconds
    output: ProfileOutput = ProfileOutput()
    stats: str | None = None
    save_bad: str | None = None
    names: NameFlags = NameFlags()
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class TopCommand(Command):
    """What `top` is asked to do."""

    target: Target = Target()
    options: RecordOptions = RecordOptions(environ=False)  # nothing shows labels
    window: float = 5.0  # seconds
    names: NameFlags = NameFlags()


@dataclass(frozen=True, kw_only=True)
class DumpCommand(Command):
    """What `dump` is asked to do."""

    target: Target = Target()
    options: DumpOptions = DumpOptions()
    depth: int | None = None  # frames of each stack that are shown
    kernel: bool = False
    core: str | None = None
    exe: str | None = None
    sysroot: str | None = None
    output: OutputOptions = OutputOptions()
    names: NameFlags = NameFlags()
    quiet: bool = False
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.options.locals and (self.core or self.options.python == "off"):
            raise UsageError("--locals needs the Python frames of a live process",
                             "leave out --core and --python off")  # fmt: skip
        if self.core is None and self.exe is not None:
            raise UsageError("--exe needs --core: it is the program of the core file")
        if self.core is None and self.sysroot is not None:
            raise UsageError("--sysroot needs --core: files of a live process are found where it sees them")


@dataclass(frozen=True, kw_only=True)
class WatchCommand(Command):
    """What `watch` is asked to do."""

    options: WatchOptions = WatchOptions()
    names: NameFlags = NameFlags()
    history: str | None = None  # a directory
    no_history: bool = False
    config: str | None = None
    check: bool = False

    def __post_init__(self) -> None:
        if self.no_history and (self.history or not self.options.files.output_dir):
            raise UsageError("--no-history needs --output-dir, and no --history: slices are kept somewhere")
        if self.no_history and self.options.push.backends:
            raise UsageError("--push needs a history: what a backend does not take waits there",
                             "leave --no-history out")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InspectCommand(Command):
    """What `inspect` is asked to do."""

    elf: str | None = None
    target: Target = Target()
    rows: bool = False
    verify: bool = False
    output: OutputOptions = OutputOptions()
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(Command):
    """What `doctor` is asked to do."""

    target: Target = Target()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(Command):
    """What `convert` is asked to do."""

    inputs: tuple[str, ...] = ()
    output: ProfileOutput = ProfileOutput()
    filter: tuple[str, ...] = ()  # regular expressions
    ignore: tuple[str, ...] = ()
    focus: str | None = None
    merge_by: Literal["function", "module", "address"] | None = None
    symbolize: bool = False
    names: NameFlags = NameFlags()
    debug_dirs: tuple[str, ...] = ()
    quiet: bool = False

    def __post_init__(self) -> None:
        names = self.names  # names in a file stay as they are
        flags = {"--raw-names": names.raw, "--simplify-names": names.simplify,
                 "--merge-clones": names.merge_clones, "--inlines": names.inlines,
                 "--debuginfod": names.debuginfod, "--debug-dir": self.debug_dirs}  # fmt: skip
        for flag, value in flags.items():
            if value and not self.symbolize:
                raise UsageError(f"{flag} needs --symbolize")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two profiles are compared."""

    relative: bool = False  # shares, not rates
    fail_on: float | None = None  # growth, as a fraction


@dataclass(frozen=True, kw_only=True)
class DiffCommand(Command):
    """What `diff` is asked to do."""

    inputs: tuple[str, ...] = ()  # two
    comparison: Comparison = Comparison()
    output: OutputOptions = OutputOptions()
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryCommand(Command):
    """What an action of `history` is asked to do."""

    history: str | None = None  # the directory


@dataclass(frozen=True, kw_only=True)
class SliceChoice:
    """Which slices; times are seconds since the epoch."""

    service: str | None = None
    at: float | None = None
    length: float | None = None  # seconds
    since: float | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.at is not None and self.since is not None:
            raise UsageError("--at and --since both say when: use one of them")


@dataclass(frozen=True, kw_only=True)
class _HistoryQuestion(HistoryCommand):
    """What an action that reads slices is asked to do."""

    choice: SliceChoice = SliceChoice()

    def __post_init__(self) -> None:
        if self.choice.length is not None and self.choice.at is None:
            raise UsageError("--for needs --at: from when on", "for the last hour: --since 1h")


@dataclass(frozen=True, kw_only=True)
class HistoryList(_HistoryQuestion):
    """What `history list` is asked to do."""

    output: OutputOptions = OutputOptions()


@dataclass(frozen=True, kw_only=True)
class HistoryShow(_HistoryQuestion):
    """What `history show` is asked to do."""

    output: ProfileOutput = ProfileOutput()
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryExport(_HistoryQuestion):
    """What `history export` is asked to do."""

    output: ProfileOutput = ProfileOutput()
    lines: bool = False
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryDiff(_HistoryQuestion):
    """What `history diff` is asked to do."""

    other: float | str | None = None  # a time, or a build-id
    deploy: str | None = None  # the begin of a build-id; "" is any
    comparison: Comparison = Comparison()
    output: OutputOptions = OutputOptions()
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.deploy is not None:
            if self.choice.at is not None or self.other is not None:
                raise UsageError("--deploy is used instead of --at and --with")
            return
        super().__post_init__()
        if self.choice.at is None or self.other is None:
            raise UsageError("history diff needs --at WHEN and --with WHEN",
                             "for example: sfsample history diff --at -2h --for 1h --with now",
                             "or before and after a new build: sfsample history diff --deploy")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HistoryPrune(HistoryCommand):
    """What `history prune` is asked to do."""

    retention: Retention = Retention()


@dataclass(frozen=True, kw_only=True)
class HistoryCheck(HistoryCommand):
    """What `history check` is asked to do."""

    path: str = "-"  # of the result


@dataclass(frozen=True, kw_only=True)
class HistoryPush(HistoryCommand):
    """What `history push` is asked to do."""

    service: str | None = None
    push: Push = Push()
    follow: bool = False

    def __post_init__(self) -> None:
        if not self.push.backends:
            example = "for example: sfsample history push --push parca=http://127.0.0.1:7070"
            raise UsageError("history push needs --push KIND=URL", example)


@dataclass(frozen=True, kw_only=True)
class ReplayCommand(Command):
    """What `replay` is asked to do."""

    file: str = ""
    sysroot: str = ""
    steppers: tuple[str, ...] = DEFAULT_ORDER
    max_frames: int = MAX_FRAMES
    names: NameFlags = NameFlags()
    debug_dirs: tuple[str, ...] = ()
    output: OutputOptions = OutputOptions()
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class ServiceCommand(Command):
    """What `service` is asked to do."""

    action: str = ""  # show or install
    config: str = "/etc/sfsample/watch.toml"
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class CompletionCommand(Command):
    """What `completion` is asked to do."""

    shell: str = ""
