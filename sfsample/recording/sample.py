"""A sample: one stack of one thread, and how much time it stands for."""

from typing import NamedTuple

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location

_MAX_HASHED = 64  # places of a stack that make its hash


class Places(tuple[Location, ...]):
    """The places of a stack, innermost first.  A stack may have thousands; some of them make its hash."""

    __slots__ = ()

    def __hash__(self) -> int:
        if len(self) <= 2 * _MAX_HASHED:
            return super().__hash__()
        return hash((len(self), self[:_MAX_HASHED], self[_MAX_HASHED :: len(self) // _MAX_HASHED]))


class ThreadKey(NamedTuple):
    """A thread of a recording."""

    process_key: int  # which `Profile.register_process` has given
    tid: int
    start_time: int = 0  # clock ticks since boot, as two threads may have had the same id in turn


class StackKey(NamedTuple):
    """What makes two samples equal."""

    process_key: int
    tid: int
    locations: tuple[Location, ...]  # innermost first
    stop_reason: StopReason
    start_time: int = 0  # as in `ThreadKey`

    @property
    def thread(self) -> ThreadKey:
        """The thread of the stack."""
        return ThreadKey(self.process_key, self.tid, self.start_time)


class TickTime(NamedTuple):
    """A tick: its number among those that were taken, and its time since the start of the recording in ns."""

    number: int
    at_ns: int


BEGINNING = TickTime(0, 0)


class Sample(NamedTuple):
    """What was seen of a thread, for all ticks since the sample before.

    `times` is the number of ticks, `wall_ns` the elapsed time and `cpu_ns` the CPU time of the thread that
    the sample stands for; all three end at `at_ns`, since the start of the recording.
    """

    thread: ThreadKey
    thread_name: str
    stack: Stack
    places: Places
    capture: Capture
    at_ns: int
    wall_ns: int
    cpu_ns: int
    times: int = 1
