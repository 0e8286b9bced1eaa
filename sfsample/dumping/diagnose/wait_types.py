"""Defines the values that describe what a thread waits for (`Wait`), and what is needed to find it out."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sfsample.dumping.diagnose.glibc_locks import OtherThreads
from sfsample.dumping.model import ProcessDump

ENDLESS_S = 365 * 86400.0  # a longer time-out counts as none


class Wait(NamedTuple):
    """What a thread waits for: `kind` for scripts, `verb` and `what` as text ("waits for" "mutex 0x1").

    The thread continues when thread `tid` of its own process acts, or one of the processes `pids`.
    `idle`: servers wait like this for work, so the wait alone means nothing is wrong.
    `timed`: the wait ends after a time-out.
    """

    kind: str
    what: str
    tid: int | None = None
    pids: tuple[int, ...] = ()
    note: str = ""
    idle: bool = False
    verb: str = "waits for"
    timed: bool = False


class WaitContext(NamedTuple):
    """The process around a thread, as far as it is needed to say what the thread waits for."""

    dump: ProcessDump
    tids: Mapping[int, int]  # tid in the process's own pid namespace -> tid in sfsample's
    others: OtherThreads
    variable_at: Callable[[int], str | None]  # the name of the variable at an address
