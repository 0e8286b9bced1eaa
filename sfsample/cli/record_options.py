"""Defines the values of `record` and `top`, and parts that other commands use too (`cli/options.py`)."""

from dataclasses import dataclass

from sfsample.cli.options import Command, NameFlags, OutputOptions
from sfsample.process.target import Target
from sfsample.recording.options import RecordOptions


@dataclass(frozen=True, kw_only=True)
class ProfileOutput(OutputOptions):
    """Where a profile is written, and how it looks."""

    open: bool = False  # True: a browser opens the result
    threads: bool = False  # True: the first frame is name/TID
    mark_python: bool = False
    by: str | None = None  # "wait": the first frame is the class of the wait


@dataclass(frozen=True, kw_only=True)
class Comparison(Command):
    """How two profiles are compared."""

    relative: bool = False  # True: compare shares, not rates
    mode: str = "cpu"  # "wall": samples of sleeping threads count, too
    fail_on: float | None = None  # growth, as a fraction
    output: OutputOptions = OutputOptions()
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class RecordCommand(Command):
    target: Target = Target()
    program: tuple[str, ...] | None = None  # words after --
    options: RecordOptions = RecordOptions()
    duration: float | None = None  # seconds
    output: ProfileOutput = ProfileOutput()
    stats: str | None = None
    idle: bool = False  # True: show the stacks of threads that wait for work
    names: NameFlags = NameFlags()
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class TopCommand(Command):
    target: Target = Target()
    options: RecordOptions = RecordOptions(environ=False)  # `top` shows no labels
    window: float = 5.0  # seconds
    names: NameFlags = NameFlags()
