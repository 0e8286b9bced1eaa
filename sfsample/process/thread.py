"""One thread of a live process: what captures have learned of it and use again.

`LiveProcess.thread` makes one for each thread id and drops it when the thread has ended, so nothing else
keeps state by thread id, and a thread that is given the id of an ended one starts afresh.
"""

from typing import NamedTuple

from sfsample.core.snapshot import Registers
from sfsample.modules.module import Module
from sfsample.process.beside import Beside
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.run_state import RunQueueBalance
from sfsample.process.stop_request import StopRequest
from sfsample.process.thread_files import ThreadFiles


class LastStop(NamedTuple):
    """What a stop showed of a thread that slept: registers that only a stop gives, and the thread's callers.

    `preserved` are the registers that a call preserves, `return_register` the one that a call leaves the
    return address in (empty on x86-64), `callers` (pc, sp) of each frame but the innermost, `counters` the
    scheduler's.
    """

    asleep: SyscallInfo
    preserved: Registers
    return_register: Registers
    callers: tuple[tuple[int, int], ...]
    counters: bytes | None


class Thread:
    """A thread: its /proc files, stop request, stacks, balance, and what its next capture needs."""

    __slots__ = (
        "asked_asleep", "asked_generation", "asleep", "balance", "beside", "files", "last_stop", "modules",
        "other_stacks", "other_stacks_end", "stack_extent", "stop", "tid",
    )  # fmt: skip

    def __init__(self, tid: int, files: ThreadFiles) -> None:
        self.tid = tid
        self.files = files
        self.stop = StopRequest(tid, self)
        self.stack_extent = (0, 0)  # first address of the stack, and the first behind it
        self.other_stacks: tuple[int, ...] = ()  # addresses from which other stacks are copied too
        # (pc, sp) of the frame that led to the last of them
        self.other_stacks_end: list[tuple[int, int]] = []
        self.beside: Beside | None = None  # what is copied together with its stack
        self.balance = RunQueueBalance()
        self.modules: frozenset[Module] = frozenset()  # on its last stack
        self.asleep: SyscallInfo | None = None  # where it slept when it was last read
        self.asked_asleep: SyscallInfo | None = None  # where it slept when it was asked to stop
        # of the modules, when it was asked to stop and did not at once
        self.asked_generation: int | None = None
        self.last_stop: LastStop | None = None  # of a stop where it slept
