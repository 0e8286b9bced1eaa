"""Defines a thread of a live process, with the facts that captures learn and use again.

`LiveProcess.thread` makes a `Thread` for each thread id, and drops the `Thread` when the thread has ended.
No other object keeps state by thread id.  So a new thread that reuses an id starts without old state.
"""

from typing import TYPE_CHECKING, NamedTuple

from sfsample.core.memory import Span
from sfsample.core.snapshot import Registers
from sfsample.modules.module import Module
from sfsample.process.beside import Beside
from sfsample.process.had_cpu import RunQueueBalance
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.stop_request import StopRequest
from sfsample.process.thread_files import ThreadFiles

if TYPE_CHECKING:
    from collections.abc import Callable


class LastStop(NamedTuple):
    """The registers and callers of a sleeping thread, from its last stop."""

    asleep: SyscallInfo  # system call in which the thread slept
    preserved: Registers  # registers that a call preserves
    return_register: Registers  # register in which a call leaves the return address; empty on x86-64
    callers: tuple[tuple[int, int], ...]  # (pc, sp) of each frame except the innermost
    counters: bytes | None  # the scheduler's counters at the stop


class Thread:
    """A thread: its /proc files, stop request, stacks, balance, and state for its next capture."""

    __slots__ = (
        "asked_asleep", "asked_generation", "asleep", "balance", "beside", "files", "goroutine",
        "goroutine_stack", "last_stop", "modules", "other_stacks", "other_stacks_end", "stack_extent",
        "stop", "tid",
    )  # fmt: skip

    def __init__(self, tid: int, files: ThreadFiles) -> None:
        self.tid = tid
        self.files = files
        self.stop = StopRequest(tid, self)
        self.stack_extent = (0, 0)  # first address of the stack, and first address after it
        # function: reads first address and end of the stack of the thread's goroutine
        self.goroutine_stack: Callable[[], Span] | None = None
        self.other_stacks: tuple[int, ...] = ()  # start addresses of the other stacks to copy
        # (pc, sp) of the frame that led to the last of `other_stacks`
        self.other_stacks_end: list[tuple[int, int]] = []
        self.beside: Beside | None = None  # memory to copy together with the stack
        self.goroutine: Beside | None = None  # goroutine to copy, if no Python frames are copied
        self.balance = RunQueueBalance()
        self.modules: frozenset[Module] = frozenset()  # modules of the last stack
        self.asleep: SyscallInfo | None = None  # system call in which the thread slept at the last reading
        self.asked_asleep: SyscallInfo | None = None  # system call in which the thread slept at the request
        # generation of the module map at the request to stop; None: no request is pending
        self.asked_generation: int | None = None
        self.last_stop: LastStop | None = None  # last stop that interrupted a sleep
