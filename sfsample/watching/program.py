"""Defines the types that all parts of a watch use: the program's functions, lasting failures, sinks."""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from sfsample.history.facts import Slice
from sfsample.symbolize.options import SymbolOptions

Metrics = dict[str, dict[str, float]]  # values by name and label
Say = Callable[..., None]  # function that prints a message, and lines with details


class Program(NamedTuple):
    """The functions and values that the program gives to a watch."""

    say: Say
    tell: Callable[[str], None]  # function that prints events during the recording of a slice
    should_stop: Callable[[], bool]
    symbols: SymbolOptions
    history: str | None  # directory of the history; None: only files


def notify(state: str) -> None:
    """Send a state to systemd if systemd has started sfsample; ignore a failure.  Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(state.encode(), address)


class Trouble:
    """A failure that may last.  It is printed when it begins and, unless `once`, when its text changes."""

    def __init__(self, say: Say, until_then: str, *, once: bool = False) -> None:
        self._say, self._until_then, self._once = say, f"{until_then}; this message comes once", once
        self._what = ""
        self._slots = 0

    def met(self, what: object, *help_lines: str) -> None:
        """Note that the failure has happened in one more slot."""
        self._slots += 1
        if str(what) != self._what and not (self._once and self._what):
            self._what = str(what)
            self._say(what, *help_lines, self._until_then)

    def over(self) -> int:
        """Note that the failure is over; return the number of slots with the failure."""
        slots, self._what, self._slots = self._slots, "", 0
        return slots


class Sink:
    """The base of all sinks, which does nothing.  Each method may raise SfsampleError or OSError."""

    def prepare(self) -> None:
        """Check, before the first slice is recorded, that slices can be kept."""

    def add(self, whole: Slice, parts: Sequence[Slice]) -> str:  # noqa: ARG002
        """Keep the whole slice, or its part for each service; return the place as a text, for a message."""
        return ""

    def add_gap(self, target: str, begin_s: float, end_s: float, why: str) -> None:
        """Keep a gap: a time without a slice, and the reason.  `target`: the name in the flags."""

    def pin(self, last_s: float) -> int:  # noqa: ARG002
        """Keep the slices of the last `last_s` seconds longer than other slices; return their number."""
        return 0

    def metrics(self) -> Metrics:
        """Return the metrics of the sink; `pull/door.py` has their names."""
        return {}

    def close(self) -> None:
        """Close files and connections, as the watch ends."""
