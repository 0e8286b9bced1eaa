"""Sends to one backend the slices of a history that it has not taken yet, the oldest first.

A slice that cannot be sent now waits in the history; one that a backend refuses is counted, and the next one
follows.  A process that is killed between the answer and the mark has the slice sent twice, with the same id.

Invariant: each slice that is not merged yet is sent, or counted as dropped, whatever a backend does
(tests/cli/push/test_push.py).
"""

import random
import time
from collections.abc import Iterator
from contextlib import closing

from sfsample.cli.push.backend import Backend, headers_for
from sfsample.cli.push.encode import encode
from sfsample.cli.push.mark import Mark
from sfsample.cli.push.post import post, without_secrets
from sfsample.cli.trouble import Trouble, say_at
from sfsample.errors import BadInput, SfsampleError
from sfsample.history.facts import SliceFacts
from sfsample.history.files import HistoryFile
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.report.formats import check_numbers

_LATER = (429, 502, 503, 504)
_MAX_PAUSE_S = 300.0
_MAX_RETRIES = 9  # of a slice at which the backend itself fails (500): the slice may be the reason


class NotNow(SfsampleError):  # noqa: N818 - reads as what happened
    """The backend takes no slices now, and wants to be left alone for a while."""

    def __init__(self, what: str, *help_lines: str, wait_s: float) -> None:
        super().__init__(what, *help_lines)
        self.wait_s = wait_s


class Pusher:
    """One backend; `due_s` is when it is worth the next attempt, by the monotonic clock."""

    def __init__(
        self, history: History, backend: Backend, service: str | None, auth_file: str | None
    ) -> None:
        self._history, self.backend, self._service, self._auth_file = history, backend, service, auth_file
        self.mark = Mark(history.directory, backend.text)
        self.due_s = 0.0
        self._tries = 0  # attempts in a row that failed
        self._faulty, self._faults = (0, 0), 0  # the slice at which the backend itself fails, and how often
        self._late = Trouble("slices wait in the history, for two days", once=True)
        self._refused = Trouble("it is counted", once=True)

    def push(self) -> bool:
        """Send what there is; return whether nothing is left.  Say what fails."""
        try:
            headers = headers_for(self.backend, self._auth_file)
            with self.mark.locked():
                for file, facts in self.unsent():
                    self._send(file, facts, headers)
                    self.mark.finish(file.identity, self._service, facts.number)
                    self.mark.save()
                    self._succeeded()
        except Exception as failure:  # noqa: BLE001 - whatever it is, other backends get their slices
            self._failed(failure)
            return False
        self._succeeded()
        return True

    def _succeeded(self) -> None:
        self._tries, self.due_s = 0, 0.0
        if failed := self._late.over():
            say_at(f"pushed again to {self.backend.text}, after {failed} failed attempts")

    def _failed(self, failure: Exception) -> None:
        """Say it, and make the pause longer each time, by chance so that many do not come back at once."""
        self._tries += 1
        pause_s = min(_MAX_PAUSE_S, 2.0**self._tries) * random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self.due_s = time.monotonic() + max(pause_s, getattr(failure, "wait_s", 0.0))
        why = getattr(failure, "strerror", None) or str(failure) or repr(failure)
        self._late.met(f"cannot push to {self.backend.text}: {why}", *getattr(failure, "help", ()))

    def unsent(self) -> Iterator[tuple[HistoryFile, SliceFacts]]:
        """Yield the slices that are still to be sent, each with its file."""
        for name in file_names(self._history.directory):
            with self._history.skipping(name.path), closing(HistoryFile(name.path)) as file:
                identity = file.identity
                for facts in list(file.facts(self.mark.last(identity) + 1)):
                    is_chosen = facts.tier == "1m" and self._service in (None, facts.service)
                    if is_chosen and facts.number > self.mark.last(identity, facts.service):
                        yield file, facts

    def _send(self, file: HistoryFile, facts: SliceFacts, headers: dict[str, str]) -> None:
        """Send a slice, or give it up.  Raises SfsampleError and OSError where it is to wait."""
        try:
            report = file.report([facts])
            check_numbers(report)
            body, own = encode(self.backend.kind, facts, report, f"{file.identity}.{facts.id}")
        except BadInput as failure:
            self._drop("damaged", str(failure))
            return
        status, refusal, wait_s = post(self.backend, body, headers | own)
        why = [*filter(None, [without_secrets(refusal, headers)])]
        if self._is_to_wait(status, (file.identity, facts.number)):
            raise NotNow(f"status {status}", *why, wait_s=wait_s)
        if status >= 300:
            self._drop(f"status {status}", *why)
            return
        self.mark.sent += 1
        self.mark.until_s = max(self.mark.until_s, facts.end_s)

    def _is_to_wait(self, status: int, which: tuple[int, int]) -> bool:
        """Whether a slice may be taken later; a redirect is a mistake that can be corrected."""
        if status < 200 or 300 <= status < 400 or status in _LATER:
            return True
        if status < 500:
            return False
        self._faults = self._faults + 1 if which == self._faulty else 1
        self._faulty = which
        return self._faults <= _MAX_RETRIES

    def _drop(self, reason: str, *why: str) -> None:
        self.mark.dropped[reason] += 1
        self._refused.met(f"{self.backend.text} does not take a slice: {reason}", *why)
