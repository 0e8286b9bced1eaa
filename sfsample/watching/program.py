"""Defines what the program that runs a watch gives to it: printing, the request to stop, names."""

from collections.abc import Callable
from typing import NamedTuple

from sfsample.symbolize.options import SymbolOptions

Say = Callable[..., None]  # prints what has happened, and lines with details


class Program(NamedTuple):
    """The functions and values that the program gives to a watch."""

    say: Say
    tell: Callable[[str], None]  # prints what happens while a slice is recorded
    should_stop: Callable[[], bool]
    symbols: SymbolOptions
    history: str | None  # the directory of the history; None: there are only files


class Trouble:
    """A failure that may last for many slots: it is said when it begins, and when it changes.

    `until_then` is a help line: what happens while it lasts.  With `once`, a change is not said.
    """

    def __init__(self, say: Say, until_then: str, *, once: bool = False) -> None:
        self._say, self._until_then, self._once = say, f"{until_then}; this is said once", once
        self._what = ""
        self._slots = 0

    def met(self, what: object, *help_lines: str) -> None:
        """Note that the failure has happened in one more slot."""
        self._slots += 1
        if str(what) != self._what and not (self._once and self._what):
            self._what = str(what)
            self._say(what, *help_lines, self._until_then)

    def over(self) -> int:
        """End the failure; return the number of slots that it lasted."""
        slots, self._what, self._slots = self._slots, "", 0
        return slots
