"""Our own look, as a recording makes it: a thread that slept in a system call is read, another one stopped.

Law: one process, one set of modules and one row cache for all its instants, as in a recording, so that what
is kept from one sample to the next is tested too.
"""

from sfsample.core.snapshot import ThreadSnapshot
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.capture_running import ANY_THREAD, StopFilter
from sfsample.process.not_captured import NotCaptured
from sfsample.process.process import LiveProcess
from sfsample.process.stop_request import PATIENCE_NS
from sfsample.process.thread import Thread
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import Unwinder
from tests.accuracy.stopping import Where


class _Stopping(LiveProcess):
    """A thread that is job-stopped now ran before, so it is stopped: it does not sleep."""

    def capture(
        self,
        thread: Thread,
        patience_ns: int = PATIENCE_NS,
        stop_filter: StopFilter = ANY_THREAD,  # noqa: ARG002
    ) -> ThreadSnapshot | NotCaptured:
        return super().capture(thread, patience_ns)


class Ours:
    """Looks at one process again and again."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.target = _Stopping(pid, stack_bytes=8 << 20)
        self._looker = ThreadCapturer(self.target, Unwinder(self.target.modules))
        self._symbolizer = Symbolizer()

    def close(self) -> None:
        self.target.close()

    def look(self, where: Where, slept: set[int]) -> dict[int, CapturedStack]:
        """Return a look at every thread that could be captured; all are stopped now, these slept before."""
        self.target.modules.allow_refresh()
        states = {tid: "S" if place.in_call and tid in slept else "R" for tid, place in where.items()}
        looks = {tid: self._looker.capture(self.target.thread(tid), state) for tid, state in states.items()}
        return {tid: look for tid, look in looks.items() if not isinstance(look, NotCaptured)}

    def executable(self, address: int) -> bool:
        """Whether there can be code at an address."""
        return self.target.modules.mapping(address) is not None

    def name(self, pc: int, *, exact: bool) -> str:
        """Return what a frame is called, for people who judge a disagreement."""
        lookup = pc if exact else pc - 1
        module = self.target.modules.find(lookup)
        if module is None:
            mapping = self.target.modules.mapping(lookup)
            return f"[{mapping.path or 'anonymous'}]" if mapping else f"[{pc:#x}, not executable]"
        return self._symbolizer.name(module, module.vaddr(pc), module.vaddr(lookup))
