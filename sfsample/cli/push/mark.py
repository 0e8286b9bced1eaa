"""Keeps how far a backend has taken a history, and how many slices it has and has not taken.

It is a small file in the directory of the history, renamed into place, for each backend and service: only one
process at a time pushes to it.  For each file of a day it has the number of the last slice that was taken or
given up, and when that begins: numbers ascend, but where slices were deleted a number can be that of another.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from sfsample.history.facts import SliceFacts

TOO_OLD = "too old"
_DAMAGE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


class Place(NamedTuple):
    """Where a file is: the slice that was taken last, when it begins, how many there were behind it."""

    number: int = 0
    begin_s: float = -1.0
    left: int = 0


class Mark:
    """Its fields are what the file has; `path` is absent before the first slice is taken."""

    def __init__(self, directory: str, backend: str, service: str | None) -> None:
        self.backend, self.service = backend, service
        name = sha256(json.dumps([backend, service]).encode("utf-8", "replace")).hexdigest()[:16]
        self.path = os.path.join(directory, f".push-{name}.json")
        self.sent = 0
        self.until_s = 0.0  # the end of the latest slice that was taken
        self.dropped: Counter[str] = Counter()  # by reason
        self.places: dict[str, Place] = {}  # by the identity of a file
        self.load()

    def load(self) -> None:
        """Read it; where it is damaged or absent nothing was taken, and all is sent again."""
        with suppress(*_DAMAGE), open(self.path, "rb") as file:
            found = json.loads(file.read())
            places = {key: Place(int(at), float(begin), int(left))
                      for key, (at, begin, left) in found["places"].items()}  # fmt: skip
            dropped = Counter({str(why): int(count) for why, count in found["dropped"].items()})
            self.sent, self.until_s = int(found["sent"]), float(found["until"])
            self.places, self.dropped = places, dropped

    def save(self) -> None:
        """Write it.  Raises OSError."""
        document = {"backend": self.backend, "service": self.service, "sent": self.sent,
                    "until": self.until_s, "dropped": self.dropped, "places": self.places}  # fmt: skip
        with open(os.open(f"{self.path}.new", _FLAGS, 0o600), "w") as file:
            json.dump(document, file)
        os.replace(f"{self.path}.new", self.path)

    def unsent(self, identity: str, read: Callable[[int], list[SliceFacts]]) -> list[SliceFacts]:
        """Return the slices of a file that are still to be sent; `read` returns them from a number on.

        Count those that are no more, as they were merged with others or deleted.
        """
        place = self.places.get(identity, Place())
        left = read(place.number)
        if left and (left[0].number, left[0].begin_s) == place[:2]:
            del left[0]
        elif place.number:  # it was deleted
            left = [each for each in read(0)
                    if each.number > place.number or each.begin_s > place.begin_s]  # fmt: skip
        self._lose(place.left - len(left))
        self.places[identity] = place._replace(left=len(left))
        return left

    def move(self, identity: str, facts: SliceFacts) -> None:
        """Note that a slice is done with."""
        left = self.places[identity].left - 1
        self.places[identity] = Place(facts.number, facts.begin_s, left)

    def forget_others(self, identities: set[str]) -> None:
        """Count as dropped what files had that are no more."""
        self._lose(sum(self.places.pop(key).left for key in self.places.keys() - identities))

    def _lose(self, count: int) -> None:
        if count > 0:
            self.dropped[TOO_OLD] += count
