"""Defines the values of `watch` and of the actions of `history`; see cli/options.py."""

from dataclasses import dataclass

from sfsample.cli.options import Command, NameFlags, OutputOptions
from sfsample.cli.record_options import Comparison, ProfileOutput
from sfsample.errors import UsageError
from sfsample.history import Retention
from sfsample.watching.options import Push, WatchOptions

CHOSEN_S = 3600.0  # default of --for, in seconds


@dataclass(frozen=True, kw_only=True)
class WatchCommand(Command):
    options: WatchOptions = WatchOptions()
    names: NameFlags = NameFlags()
    history: str | None = None  # a directory
    no_history: bool = False
    config: str | None = None
    check: bool = False

    def __post_init__(self) -> None:
        if self.no_history and (self.history or not self.options.files.output_dir):
            raise UsageError("--no-history excludes --history, and needs --output-dir to keep the slices")
        if self.no_history and self.options.push.backends:
            raise UsageError("--push needs a history: slices wait there until the backend takes them",
                             "leave out --no-history")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HistoryCommand(Command):
    """The flags of every action of `history`."""

    history: str | None = None  # the directory
    utc: bool = False  # True: `parse` has made UTC the local time


@dataclass(frozen=True, kw_only=True)
class HistoryQuestion(HistoryCommand):
    """The flags that choose slices; times are in seconds since the epoch."""

    service: str | None = None
    at: float | None = None
    length: float | None = None  # seconds
    since: float | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.at is not None and self.since is not None:
            raise UsageError("--at and --since both choose a time: use one of them")
        if self.length is not None and self.at is None:
            raise UsageError("--for needs --at, at which the time begins", "for the last hour: --since 1h")


@dataclass(frozen=True, kw_only=True)
class HistoryList(HistoryQuestion):
    output: OutputOptions = OutputOptions()
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryExport(HistoryQuestion):
    output: ProfileOutput = ProfileOutput()
    lines: bool = False
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryShow(HistoryExport):
    """The flags of `history show`, which writes a page as `history export` does."""

    waits: bool = False  # True: only the table of waits
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class HistoryDiff(HistoryQuestion, Comparison):
    other: float | str | None = None  # a time, or a build-id
    deploy: str | None = None  # first digits of a build-id; "" is any build-id

    def __post_init__(self) -> None:
        if self.deploy is not None:
            if self.at is not None or self.other is not None:
                raise UsageError("--deploy replaces --at and --with: leave these out")
            return
        super().__post_init__()
        if self.at is None or self.other is None:
            raise UsageError("history diff needs --at WHEN and --with WHEN",
                             "for example: sfsample history diff --at -2h --for 1h --with now",
                             "to compare before and after a new build: --deploy")  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class HistoryPrune(HistoryCommand):
    retention: Retention = Retention()


@dataclass(frozen=True, kw_only=True)
class HistoryCheck(HistoryCommand):
    path: str = "-"  # file of the result


@dataclass(frozen=True, kw_only=True)
class HistoryPush(HistoryCommand):
    push: Push = Push()
    follow: bool = False

    def __post_init__(self) -> None:
        if not self.push.backends:
            example = "for example: sfsample history push --push parca=http://127.0.0.1:7070"
            raise UsageError("history push needs --push KIND=URL", example)
