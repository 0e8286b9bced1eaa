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
        pid=core.pid, name=core.name, cmdline=core.arguments.split(), exe=core.exe, time=0.0,
        threads=threads, problems=tuple(core.problems),
    )  # fmt: skip


def _thread(core: CoreProcess, unwinder: Unwinder, thread: CoreThread) -> ThreadDump:
    call = core_call(core, thread)
    before = ThreadDump(
        tid=thread.tid, name=core.name, state="", capture=Capture.FAILED, stop_ns=None, error=None,
        syscall=call and call.syscall, wchan=None, stack=None, modules=(), ns_tid=own_tid(core, thread),
        call=call, memory=core.memory, signal=thread.signal,
    )  # fmt: skip
    snapshot = core.snapshot(thread)
    if isinstance(snapshot, str):
        return before._replace(error=snapshot)
    stack = unwinder.walk(snapshot)
    modules = tuple(core.modules.find(frame.lookup_pc) for frame in stack.frames)
    return before._replace(capture=Capture.CORE, stack=stack, modules=modules)
