"""Dumps a core file.  A thread with damaged registers has an error instead of a stack."""

from collections.abc import Iterator

from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture
from sfsample.dumping.model import ProcessDump, ThreadDump
from sfsample.dumping.options import DEFAULT_DUMP_OPTIONS, DumpOptions
from sfsample.errors import CoreError
from sfsample.formats.elf.core_file import LEAST_SIZE, CoreThread
from sfsample.process.core_process import CoreProcess, open_core
from sfsample.process.core_threads import CorePython, core_call, own_tid
from sfsample.unwind.unwinder import Unwinder

_BYTES_PER_FRAME = 320  # bytes of the file for each frame: many damaged threads may claim the same stack
_MIN_FRAMES = 8  # a thread with fewer frames counts as 8 frames


def dump_core(
    path: str, exe: str | None = None, how: DumpOptions = DEFAULT_DUMP_OPTIONS, *, sysroot: str = ""
) -> ProcessDump:
    """Unwind every thread.  Raises CoreError.

    `exe`: path of the program, if it was moved; `sysroot`: directory with the files of another machine.
    """
    core = open_core(path, exe, sysroot)
    unwinder = Unwinder(core.modules, steppers=how.steppers, max_frames=how.max_frames)
    threads, problems = [*_threads(core, unwinder, path)], core.problems
    if how.python is not PythonView.OFF:  # after the walk: native frames show whether a thread runs Python
        python = CorePython(core)
        for at, thread in enumerate(threads):
            if thread.stack and (stack := python.stack(thread.ns_tid, thread.stack.frames)) is not None:
                threads[at] = thread._replace(python=stack, gil=python.gil(thread.ns_tid))
        problems += python.problems
    return ProcessDump(
        pid=core.pid, name=core.name, cmdline=core.arguments.split(), exe=core.exe, time=0.0,
        threads=tuple(threads), problems=tuple(problems),
    )  # fmt: skip


def _threads(core: CoreProcess, unwinder: Unwinder, path: str) -> Iterator[ThreadDump]:
    """Yield every thread.  Raises CoreError if the threads have too many frames for the size of the file."""
    left = max(core.size, LEAST_SIZE) // _BYTES_PER_FRAME
    for thread in core.threads():
        dumped = _thread(core, unwinder, thread)
        left -= max(len(dumped.stack.frames) if dumped.stack else 0, _MIN_FRAMES)
        if left < 0:
            raise CoreError(f"cannot dump: {path}: its threads have too many frames",
                            "show fewer frames of each thread: --max-frames 64")  # fmt: skip
        yield dumped


def _thread(core: CoreProcess, unwinder: Unwinder, thread: CoreThread) -> ThreadDump:
    call = core_call(core, thread)
    # the kernel notes the signal at every thread; the first thread got it (fs/binfmt_elf.c, fill_note_info)
    signal = thread.signal if thread is core.threads()[0] else 0
    before = ThreadDump(
        tid=thread.tid, name=core.name, state="", syscall=call and call.syscall,
        ns_tid=own_tid(core, thread), call=call, memory=core.memory, signal=signal,
    )  # fmt: skip
    snapshot = core.snapshot(thread)
    if isinstance(snapshot, str):
        return before._replace(error=snapshot)
    stack = unwinder.walk(snapshot)
    modules = tuple(core.modules.find(frame.lookup_pc) for frame in stack.frames)
    return before._replace(capture=Capture.CORE, stack=stack, modules=modules)
