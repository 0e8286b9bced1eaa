"""Threads whose /proc files say what a test wants."""

from types import SimpleNamespace

from sfsample.process.thread import Thread


def thread(tid: int, *, counters=None, asleep=None, last_run=None, stat=None) -> Thread:
    """Return a thread; each keyword is what its files give, or a function that returns that."""
    files = SimpleNamespace(tid=tid, fds={}, holder=0)
    for name, given in (("counters", counters), ("asleep", asleep), ("last_run", last_run), ("stat", stat)):
        setattr(files, name, given if callable(given) else lambda given=given: given)
    return Thread(tid, files)
