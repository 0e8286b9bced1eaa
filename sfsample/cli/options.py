"""Defines the values of commands: the parts that several commands share, and the value of `dump`.

A field has the name of the flag's `dest`, and the default of the flag.  The values of other commands are in
other modules, because each class costs 0.5 ms when sfsample starts.
"""

from dataclasses import dataclass

from sfsample.dumping.options import DumpOptions
from sfsample.errors import UsageError
from sfsample.process.target import Target
from sfsample.symbolize.options import NameOptions


@dataclass(frozen=True, kw_only=True)
class Command:
    """The base class of the values of all commands."""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where the result is written."""

    path: str = "-"
    format: str = ""  # `parse` replaces "" by the format for the suffix of the path


@dataclass(frozen=True, kw_only=True)
class NameFlags(NameOptions):
    """How functions are named, and whether debug files are fetched."""

    debuginfod: bool = False


@dataclass(frozen=True, kw_only=True)
class DumpCommand(Command):
    """The flags of `dump`."""

    target: Target = Target()
    options: DumpOptions = DumpOptions()
    depth: int | None = None  # most frames that are shown of a stack; None: all
    kernel: bool = False
    subprocesses: bool = False
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
        if self.core is None and (self.exe is not None or self.sysroot is not None):
            raise UsageError("--exe and --sysroot need --core: they locate the program of a core file")
