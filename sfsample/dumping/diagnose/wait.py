"""What a thread waits for, as a value; and what has to be known to tell.

Law: values only.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sfsample.dumping.collect import ProcessDump
from sfsample.dumping.diagnose.glibc_locks import Others

ENDLESS_S = 365 * 86400.0  # a time-out beyond this is none


class Wait(NamedTuple):
    """`what` it waits for, in words.  Who has to act: thread `tid` of its process, or one of `pids`.

    `idle`: as every server waits for work; nothing is wrong about it by itself.  `timed`: it gives up after a
    time.
    """

    kind: str
    what: str
    tid: int | None = None
    pids: tuple[int, ...] = ()
    note: str = ""
    idle: bool = False
    verb: str = "waits for"
    timed: bool = False


class Scene(NamedTuple):
    """What else has to be known of a process to tell what its threads wait for."""

    dump: ProcessDump
    tids: Mapping[int, int]  # id in its own pid namespace -> id as we see it
    others: Others
    variable: Callable[[int], str | None]  # the name of what is at an address
