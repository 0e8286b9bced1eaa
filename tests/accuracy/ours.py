"""Our own look: the capture and the walk that a recording makes, with what is needed to repeat it.

Law: one process, one set of modules and one row cache for all its instants, as in a recording, so that what
is kept from one sample to the next is tested too.
"""

from typing import NamedTuple

from sfsample.model import Stack, ThreadSnapshot
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.target.live import LiveProcess
from sfsample.target.tracer import Missed
from sfsample.unwind.unwinder import Unwinder


class OurStack(NamedTuple):
    """A walk and what it was made from."""

    stack: Stack
    snapshot: ThreadSnapshot

    @property
    def pcs(self) -> tuple[int, ...]:
        return tuple(frame.pc for frame in self.stack.frames)


class Ours:
    """Looks at one process again and again."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.target = LiveProcess(pid, stack_bytes=8 << 20)
        self._unwinder = Unwinder(self.target.index)
        self._symbolizer = Symbolizer()

    def close(self) -> None:
        self.target.close()

    def look(self) -> dict[int, OurStack]:
        """Return the stack of every thread that could be captured."""
        self.target.index.expire()
        found = {tid: self._thread(tid) for tid, _ in self.target.threads()}
        return {tid: stack for tid, stack in found.items() if stack is not None}

    def _thread(self, tid: int) -> OurStack | None:
        taken = self.target.capture(tid)
        if isinstance(taken, Missed):
            return None
        stack = self._unwinder.walk(taken)
        if self.target.capturer.learn_trampolines(stack):
            again = self.target.capture(tid)
            if not isinstance(again, Missed):
                taken, stack = again, self._unwinder.walk(again)
        return OurStack(stack, taken)

    def name(self, pc: int, *, exact: bool) -> str:
        """Return what a frame is called, for people who judge a disagreement."""
        lookup = pc if exact else pc - 1
        module = self.target.index.find(lookup)
        if module is None:
            mapping = self.target.index.mapping(lookup)
            return f"[{mapping.path or 'anonymous'}]" if mapping else f"[{pc:#x}, not executable]"
        return self._symbolizer.name(module, module.vaddr(pc), module.vaddr(lookup))
