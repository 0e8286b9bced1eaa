"""Dumps a core file: what `dumping.collect` and `dumping.run` do for a process that has ended.

A thread whose registers are damaged is shown with the reason, never left out.
"""

from sfsample.core.snapshot import Capture
from sfsample.dumping.model import ProcessDump, ThreadDump
from sfsample.dumping.run import DEFAULT_OPTIONS, DumpOptions
from sfsample.formats.elf.core_file import CoreThread
from sfsample.process.core_process import CoreProcess, open_core
from sfsample.process.facts.core_syscalls import core_call, own_tid
from sfsample.unwind.unwinder import Unwinder


def dump_core(
    path: str, exe: str | None = None, how: DumpOptions = DEFAULT_OPTIONS, *, sysroot: str = ""
) -> ProcessDump:
    """Unwind every thread; `exe` is the program, if that is not where it was.  Raises CoreError.

    The files of another machine are searched for under `sysroot`.  A core file has neither a time nor the
    names of threads.
    """
    core = open_core(path, exe, sysroot, how.debug_dirs)
    unwinder = Unwinder(core.modules, steppers=how.steppers, max_frames=how.max_frames)
    threads = tuple(_thread(core, unwinder, thread) for thread in core.threads())
    return ProcessDump(
        pid=core.pid, name=core.name, cmdline=core.arguments.split(), exe=core.exe, time=0.0,
        threads=threads, problems=tuple(core.problems),
    )  # fmt: skip


def _thread(core: CoreProcess, unwinder: Unwinder, thread: CoreThread) -> ThreadDump:
    call = core_call(core, thread)
    # the kernel notes the signal for every thread (Linux fs/binfmt_elf.c, fill_note_info), the first got it
    signal = thread.signal if thread is core.threads()[0] else 0
    before = ThreadDump(
        tid=thread.tid, name=core.name, state="", capture=Capture.FAILED, stop_ns=None, error=None,
        syscall=call and call.syscall, wchan=None, stack=None, modules=(), ns_tid=own_tid(core, thread),
        call=call, memory=core.memory, signal=signal,
    )  # fmt: skip
    snapshot = core.snapshot(thread)
    if isinstance(snapshot, str):
        return before._replace(error=snapshot)
    stack = unwinder.walk(snapshot)
    modules = tuple(core.modules.find(frame.lookup_pc) for frame in stack.frames)
    return before._replace(capture=Capture.CORE, stack=stack, modules=modules)
