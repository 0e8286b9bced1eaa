"""One thread, one instant: registers and a slice of stack.

Law: inside the window (the `try` block) there are system calls and nothing else: no parsing, no look-up of
modules, no allocation that could be made before or after.  The window closes whatever happens in it.
"""

import gc

from sfsample.arch import Arch
from sfsample.model import ThreadSnapshot
from sfsample.target.gate import PAUSE
from sfsample.target.stack_copy import StackCopy
from sfsample.target.tracer import Missed, Tracer

DEFAULT_STACK_BYTES = 256 * 1024


def check_size(stack_bytes: int) -> None:
    """Raise ValueError for a size that makes no sense."""
    if not 1 << 10 <= stack_bytes <= 1 << 30:
        raise ValueError(f"stack_bytes must be between 1 KiB and 1 GiB, not {stack_bytes}")


class Capturer:
    """Captures threads of one process by stopping them."""

    def __init__(self, pid: int, arch: Arch, copy: StackCopy, *, child: bool = False) -> None:
        self._copy = copy
        self.tracer = Tracer(pid, arch, child=child)

    def capture(self, tid: int) -> ThreadSnapshot | Missed:
        """Stop a thread, copy, let it run; everything else happens after that."""
        tracer, copy = self.tracer, self._copy
        if tracer.late:
            tracer.settle()
        tracer.rehearse(tid)
        copy.rehearse(tid)
        sp = 0
        collecting = gc.isenabled()
        gc.disable()  # a collection must not fall into the pause
        PAUSE.acquire()
        try:
            missed = tracer.stop(tid)
            if missed is None:
                sp = tracer.registers(tid)
                if sp:
                    copy.fill(tid, sp)
        finally:
            stop_ns = tracer.release()
            PAUSE.release()
            if collecting:
                gc.enable()
        if missed is not None:
            return missed
        if not sp:
            return Missed(gone=True, why="killed while it was stopped")
        registers = tracer.dwarf_registers()
        copy.learn_extent(tid, sp)
        eintr = tracer.eintr(tid, registers)
        return ThreadSnapshot(tid, registers, copy.memory(), copy.bounded, stop_ns, eintr, tracer.arch)
