"""A sample: one stack of one thread, and the time that it stands for."""

from typing import NamedTuple

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location

Places = tuple[Location, ...]  # places of a stack, innermost first


class ThreadKey(NamedTuple):
    """A thread of a recording."""

    process_key: int  # key from `Profile.register_process`
    tid: int
    start_time: int = 0  # clock ticks since boot; tells apart two threads that had the same id


class StackKey(NamedTuple):
    """A stack of a thread; samples with equal keys are counted together."""

    process_key: int
    tid: int
    locations: Places
    stop_reason: StopReason
    start_time: int = 0  # clock ticks, see `ThreadKey`

    @property
    def thread(self) -> ThreadKey:
        """The thread of the stack."""
        return ThreadKey(self.process_key, self.tid, self.start_time)


class TickTime(NamedTuple):
    """A tick at which sfsample took samples."""

    number: int  # from 1 on, without missed and skipped ticks; 0 if timers take the samples
    at_ns: int  # time since the start of the recording


BEGINNING = TickTime(0, 0)


class Sample(NamedTuple):
    """A stack of a thread, which stands for all ticks since the previous sample of the thread."""

    thread: ThreadKey
    thread_name: str
    stack: Stack
    places: Places
    capture: Capture
    at_ns: int  # time since the start of the recording
    wall_ns: int  # elapsed time, up to `at_ns`, that the sample stands for
    cpu_ns: int  # CPU time of the thread that the sample stands for
    times: int = 1  # number of ticks that the sample stands for
