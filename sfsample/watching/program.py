"""What a watch is given by the program that runs it: a way to print, when to stop, names, children."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfsample.symbolize.options import SymbolOptions
from sfsample.watching.triggered import DumpCommand
from sfsample.watching.trouble import Say


class Program(NamedTuple):
    """The program around a watch."""

    say: Say
    tell: Callable[[str], None]  # prints what happens while a slice is recorded
    should_stop: Callable[[], bool]
    symbols: SymbolOptions
    history: str | None  # the directory of the history; None: there are only files
    tidy: Sequence[str]  # the command of the child that tidies the history
    push: Sequence[str]  # that of the child that pushes it
    dump: DumpCommand
