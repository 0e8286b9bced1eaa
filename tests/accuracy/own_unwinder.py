"""sfsample's stacks of a stopped process, captured as in a recording.

A thread that slept in a system call is read, any other is stopped.  One process, module map and cache of
rules serve all stops, as in a recording, so that cached values are tested too.
"""

from sfsample.core.snapshot import ThreadSnapshot
from sfsample.formats.elf.image import PAGE
from sfsample.modules.location import Location
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.capture_running import ANY_THREAD, StopFilter
from sfsample.process.not_captured import NotCaptured
from sfsample.process.process import LiveProcess
from sfsample.process.stop_request import PATIENCE_NS
from sfsample.process.thread import Thread
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.unwind.unwinder import Unwinder
from tests.accuracy.stopping import Where
from tests.builders.core_builder import Load, core_of

_CODE_BYTES = 512  # bytes of generated code from the pc of a frame on


class _StoppingProcess(LiveProcess):
    """Stops every thread that it captures: one that is job-stopped ran before."""

    def capture(
        self,
        thread: Thread,
        patience_ns: int = PATIENCE_NS,
        stop_filter: StopFilter = ANY_THREAD,  # noqa: ARG002
    ) -> ThreadSnapshot | NotCaptured:
        return super().capture(thread, patience_ns)


class OwnUnwinder:
    """Captures and unwinds the threads of one process, at one stop after the other."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.target = _StoppingProcess(pid, stack_bytes=8 << 20)
        self._capturer = ThreadCapturer(self.target, Unwinder(self.target.modules))
        self._symbolizer = Symbolizer()

    def close(self) -> None:
        self.target.close()

    def capture_all(self, where: Where, slept: set[int]) -> dict[int, CapturedStack]:
        """Return the stack of each thread that could be captured; those in `slept` slept before the stop."""
        self.target.modules.allow_refresh()
        states = {tid: "S" if place.in_call and tid in slept else "R" for tid, place in where.items()}
        stacks = {
            tid: self._capturer.capture(self.target.thread(tid), state) for tid, state in states.items()
        }
        return {tid: stack for tid, stack in stacks.items() if not isinstance(stack, NotCaptured)}

    def core(self, captured: CapturedStack) -> bytes:
        """Return a core file with this one thread, and with the code of its frames that is in no file."""
        modules = self.target.modules
        code = []
        for mapping in modules.mappings:
            module = modules.find(mapping.start) if mapping.executable else None
            if not mapping.executable or mapping.is_file:
                continue
            if module is not None:  # the vdso
                data = bytes(module.image.data)
            else:
                inside = [f.pc for f in captured.stack.frames if mapping.start <= f.pc <= mapping.end]
                last = max(inside, default=0) + _CODE_BYTES
                pages = range(mapping.start, min(last, mapping.end), PAGE)
                data = b"".join(modules.code(page, PAGE) for page in pages)
            code.append(Load(mapping.start, data, 5, mapping.end - mapping.start))
        return core_of(captured.snapshot, modules.mappings, *code)

    def executable(self, address: int) -> bool:
        """Whether there can be code at an address."""
        return self.target.modules.mapping(address) is not None

    def name(self, pc: int, *, exact: bool) -> str:
        """Return the name of a frame, for the report."""
        lookup = pc if exact else pc - 1
        module = self.target.modules.find(lookup)
        if module is None:
            mapping = self.target.modules.mapping(lookup)
            return f"[{mapping.path or 'anonymous'}]" if mapping else f"[{pc:#x}, not executable]"
        return self._symbolizer.frames(Location(module, module.vaddr(pc), module.vaddr(lookup)))[0].text
