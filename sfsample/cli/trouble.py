"""Says with the time what happens in `watch`, and says a failure that lasts only once."""

import time

from sfsample.cli.terminal import say
from sfsample.core.foreign import utc


class Trouble:
    """A failure that may last for many slots: it is said when it begins, and when it changes.

    `until_then` is a help line: what happens as long as it lasts.  With `once` no change is said.
    """

    def __init__(self, until_then: str, *, once: bool = False) -> None:
        self._until_then, self._once = f"{until_then}; this is said once", once
        self._what = ""
        self._slots = 0

    def met(self, what: object, *help_lines: str) -> None:
        """Note it for one slot."""
        self._slots += 1
        if str(what) != self._what and not (self._once and self._what):
            self._what = str(what)
            say_at(what, *help_lines, self._until_then)

    def over(self) -> int:
        """Return for how many slots it has lasted; it is over."""
        slots, self._what, self._slots = self._slots, "", 0
        return slots


def say_at(what: object, *details: str) -> None:
    """Print a line with the time, which is UTC, as in the file names."""
    say(f"{utc(time.time(), '%Y-%m-%dT%H:%M:%SZ')} {what}", *details)
