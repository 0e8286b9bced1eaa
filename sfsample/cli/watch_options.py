"""Defines the value of `watch`; see cli/options.py."""

from dataclasses import dataclass

from sfsample.cli.options import Command, NameFlags
from sfsample.errors import UsageError
from sfsample.watching.options import WatchOptions


@dataclass(frozen=True, kw_only=True)
class WatchCommand(Command):
    """The flags of `watch`."""

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
