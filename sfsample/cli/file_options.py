"""Defines the values of commands that take no samples; see cli/options.py."""

from dataclasses import dataclass
from typing import Literal

from sfsample.cli.options import Command, NameFlags, OutputOptions
from sfsample.cli.record_options import Comparison, ProfileOutput
from sfsample.errors import UsageError
from sfsample.process.target import Target


@dataclass(frozen=True, kw_only=True)
class InspectCommand(Command):
    elf: str | None = None
    target: Target = Target()
    rows: bool = False
    output: OutputOptions = OutputOptions()
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class DoctorCommand(Command):
    target: Target = Target()
    output: OutputOptions = OutputOptions()


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(Command):
    inputs: tuple[str, ...] = ()
    output: ProfileOutput = ProfileOutput()
    filter: tuple[str, ...] = ()  # regular expressions
    ignore: tuple[str, ...] = ()
    focus: str | None = None
    merge_by: Literal["function", "module", "address"] | None = None
    symbolize: bool = False
    names: NameFlags = NameFlags()
    quiet: bool = False

    def __post_init__(self) -> None:
        names = self.names  # `convert` finds names only with --symbolize
        flags = {"--raw-names": names.raw, "--simplify-names": names.simplify,
                 "--merge-clones": names.merge_clones, "--inlines": names.inlines,
                 "--debuginfod": names.debuginfod, "--debug-dir": names.debug_dirs}  # fmt: skip
        if not self.symbolize and (flag := next(filter(flags.get, flags), None)):
            raise UsageError(f"{flag} needs --symbolize")


@dataclass(frozen=True, kw_only=True)
class DiffCommand(Comparison):
    inputs: tuple[str, ...] = ()  # two inputs: before and after


@dataclass(frozen=True, kw_only=True)
class ServiceCommand(Command):
    action: str = ""  # show or install
    config: str = "/etc/sfsample/watch.toml"
    force: bool = False


@dataclass(frozen=True, kw_only=True)
class CompletionCommand(Command):
    shell: str = ""
