"""Sends to one backend the slices of a history that it has not taken yet, the oldest first.

A slice that cannot be sent now waits in the history; one that a backend refuses is counted, and the next one
follows.  A process that is killed between the answer and the mark has the slice sent twice, with the same id.

Invariant: each slice is sent, or counted as dropped, whatever a backend does (tests/cli/push/test_push.py).
"""

import os
import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from sfsample.cli.push.backend import Backend, headers_for
from sfsample.cli.push.encode import encode
from sfsample.cli.push.mark import TOO_OLD, Mark
from sfsample.cli.push.post import FAILURES, Answer, post
from sfsample.cli.trouble import Trouble, say_at
from sfsample.errors import BadInput, FormatError, SfsampleError
from sfsample.formats.protobuf import fields
from sfsample.history.facts import SliceFacts
from sfsample.history.files import HistoryFile, file_names
from sfsample.history.lock import lock
from sfsample.history.store import History

_LATER = (429, 502, 503, 504)
_MAX_PAUSE_S = 300.0
_MAX_TRIES = 10  # for a slice at which the backend itself fails (500)
_SLOW = "slices wait in the history, for two days"


class NotNow(Exception):  # noqa: N818 - reads as what happened
    """The backend takes no slices now; `help` says why, and it wants to be left alone for `wait_s`."""

    def __init__(self, what: str, *help_lines: str, wait_s: float = 0.0) -> None:
        super().__init__(what)
        self.help, self.wait_s = help_lines, wait_s


class Pusher:
    """One backend; `due_s` is when it is worth the next attempt, by the monotonic clock."""

    def __init__(
        self, history: History, backend: Backend, service: str | None, auth_file: str | None
    ) -> None:
        self._history, self.backend, self._service, self._auth_file = history, backend, service, auth_file
        self.mark = Mark(history.directory, backend.text, service)
        self.due_s = 0.0
        self.left = 0  # slices that are still to be sent
        self._lock: int | None = None
        self._tries = self._faults = 0  # attempts in a row that failed; those that the first slice made fail
        self._trouble, self._said = Trouble(_SLOW), set[str]()

    def lock(self) -> bool:
        """Return whether no other process pushes the same slices there; then it is this one, to its end."""
        if self._lock is None:
            self._lock = lock(*os.path.split(self.mark.path))
            self.mark.load()
        return self._lock is not None

    def close(self) -> None:
        """Let other processes push."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def push(self, left_s: Callable[[], float]) -> bool:
        """Send what there is, as long as time is left; return whether nothing is left.  Say what fails."""
        try:
            self._push(headers_for(self.backend, self._auth_file), left_s)
        except (NotNow, SfsampleError, OSError) as failure:
            self._tries += 1
            pause_s = min(_MAX_PAUSE_S, 2.0**self._tries) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
            self.due_s = time.monotonic() + max(pause_s, getattr(failure, "wait_s", 0.0))
            self._trouble.met(f"cannot push to {self.backend.text}: {failure}", *getattr(failure, "help", ()))
            return False
        self._tries, self.due_s = 0, 0.0
        return not self.left

    def _push(self, headers: dict[str, str], left_s: Callable[[], float]) -> None:
        if not self.lock():
            raise NotNow("another process pushes this history there")
        with ExitStack() as stack:
            queue = self._unsent(stack)
            self.left = len(queue)
            self._save()
            for file, identity, facts in queue:
                if (limit_s := left_s()) <= 0:
                    return
                self._send(file, facts, identity, headers, limit_s)
                self.mark.move(identity, facts)
                self.left, self._tries, self._faults = self.left - 1, 0, 0
                self._save()
                if failed := self._trouble.over():
                    say_at(f"pushed again to {self.backend.text}, after {failed} failed attempts")

    def _unsent(self, stack: ExitStack) -> list[tuple[HistoryFile, str, SliceFacts]]:
        """Return what is to be sent: file, identity of that, slice; count what has gone unsent."""
        queue, identities, is_whole = list[tuple[HistoryFile, str, SliceFacts]](), set[str](), True
        too_old = self.mark.dropped[TOO_OLD]
        for name in file_names(self._history.directory):
            try:
                file = HistoryFile(name.path)
                stack.callback(file.close)
                identity = str(file.identity)
                identities.add(identity)
                slices = self.mark.unsent(identity, partial(_slices, file, self._service))
                queue += [(file, identity, each) for each in slices]
            except FileNotFoundError:  # it has just been removed
                is_whole = False
            except (BadInput, sqlite3.Error, OSError) as failure:
                is_whole = False
                self._say_once(f"skipped: {name.path}: {getattr(failure, 'strerror', None) or failure}")
        if is_whole:
            self.mark.forget_others(identities)
        if lost := self.mark.dropped[TOO_OLD] - too_old:
            self._say_once(f"not pushed to {self.backend.text}: {lost} slices: {TOO_OLD}")
        return queue

    def _send(self, file: HistoryFile, facts: SliceFacts, identity: str, headers: dict[str, str],
              limit_s: float) -> None:  # fmt: skip
        """Send a slice, or give it up.  Raises NotNow."""
        try:
            body, own = encode(self.backend.kind, facts, file.report([facts]), f"{identity}.{facts.id}")
        except BadInput as failure:
            self._drop("damaged", str(failure))
            return
        try:
            answer = post(self.backend, body, headers | own, limit_s)
        except FAILURES as failure:
            raise NotNow(
                getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
            ) from None
        self._judge(answer, headers, facts)

    def _judge(self, answer: Answer, headers: dict[str, str], facts: SliceFacts) -> None:
        status, why = answer.status, answer.why(headers)
        self._faults += status >= 500
        if status in _LATER or (not 200 <= status < 500 and self._faults < _MAX_TRIES) or 300 <= status < 400:
            moved = ": it redirects, which is not followed" if 300 <= status < 400 else ""
            raise NotNow(f"status {status}{moved}", *filter(None, [why]), wait_s=answer.wait_s(time.time()))
        if not 200 <= status < 300:
            self._drop(f"status {status}", why)
            return
        self.mark.sent += 1
        self.mark.until_s = max(self.mark.until_s, facts.end_s)
        if self.backend.kind == "otlp" and (rejected := _rejected(answer.body)):
            self._drop("rejected in part", why, rejected)

    def _drop(self, reason: str, why: str, count: int = 1) -> None:
        self.mark.dropped[reason] += count
        self._say_once(f"{self.backend.text} does not take a slice: {reason}", why)

    def _say_once(self, what: str, *details: str) -> None:
        if what not in self._said:
            self._said.add(what)
            say_at(what, *filter(None, details), "counted from now on, and not said again")

    def _save(self) -> None:
        try:
            self.mark.save()
        except OSError as failure:
            self._say_once(f"cannot write: {self.mark.path}: {os.strerror(failure.errno or 0)}")


def _slices(file: HistoryFile, service: str | None, first: int) -> list[SliceFacts]:
    """Return the slices from a number on that were not merged."""
    return [each for each in file.facts(first) if each.tier == "1m" and service in (None, each.service)]


def _rejected(body: bytes) -> int:
    """Return how many profiles an answer of OTLP calls rejected (partial_success 1, rejected_profiles 1)."""
    try:
        parts = dict(fields(memoryview(body))).get(1)
        count = dict(fields(parts)).get(1, 0) if isinstance(parts, memoryview) else 0
        return count if isinstance(count, int) else 0
    except FormatError:
        return 0
