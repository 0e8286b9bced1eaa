"""What a watch is given by the program that runs it: a way to print, when to stop, names, children."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from sfsample.symbolize.options import SymbolOptions

Say = Callable[..., None]  # prints what has happened, and lines with details
DumpWords = Callable[[Sequence[int], str], list[str]]  # by process ids and the path of the dump


class Program(NamedTuple):
    """The program around a watch."""

    say: Say
    tell: Callable[[str], None]  # prints what happens while a slice is recorded
    should_stop: Callable[[], bool]
    symbols: SymbolOptions
    history: str | None  # the directory of the history; None: there are only files
    tidy: list[str]  # the words of the child (`own_program`) that tidies the history
    push: list[str]  # those of the child that pushes it
    dump: DumpWords  # those of the child that dumps


class Trouble:
    """A failure that may last for many slots: it is said when it begins, and when it changes.

    `until_then` is a help line: what happens as long as it lasts.  With `once` no change is said.
    """

    def __init__(self, say: Say, until_then: str, *, once: bool = False) -> None:
        self._say, self._until_then, self._once = say, f"{until_then}; this is said once", once
        self._what = ""
        self._slots = 0

    def met(self, what: object, *help_lines: str) -> None:
        """Note it for one slot."""
        self._slots += 1
        if str(what) != self._what and not (self._once and self._what):
            self._what = str(what)
            self._say(what, *help_lines, self._until_then)

    def over(self) -> int:
        """Return for how many slots it has lasted; it is over."""
        slots, self._what, self._slots = self._slots, "", 0
        return slots
