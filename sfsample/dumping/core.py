"""Collects what a dump shows of a core file: `dumping.collect` for a process that has ended.

A thread whose registers are damaged is shown with the reason, never left out.
"""

from sfsample.core.snapshot import Capture
from sfsample.dumping.model import ProcessDump, ThreadDump
from sfsample.formats.elf.core_file import CoreThread
from sfsample.process.core_process import CoreProcess
from sfsample.process.facts.core_syscalls import core_call, own_tid
from sfsample.unwind.unwinder import Unwinder


def take_core(core: CoreProcess, unwinder: Unwinder) -> ProcessDump:
    """Unwind every thread.  A core file has neither a time nor the names of threads."""
    threads = tuple(_thread(core, unwinder, thread) for thread in core.threads())
    return ProcessDump(
        core.pid, core.name, core.arguments.split(), core.exe, 0.0, threads, tuple(core.problems)
    )


def _thread(core: CoreProcess, unwinder: Unwinder, thread: CoreThread) -> ThreadDump:
    call = core_call(core, thread)
    before = ThreadDump(
        thread.tid, core.name, "", Capture.FAILED, None, None, call and call.syscall, None, None, (),
        ns_tid=own_tid(core, thread), call=call, memory=core.memory, signal=thread.signal,
    )  # fmt: skip
    snapshot = core.snapshot(thread)
    if isinstance(snapshot, str):
        return before._replace(error=snapshot)
    stack = unwinder.walk(snapshot)
    modules = tuple(core.modules.find(frame.lookup_pc) for frame in stack.frames)
    return before._replace(capture=Capture.CORE, stack=stack, modules=modules)
