"""Reads in which kernel functions a sleeping thread waits.

Stops no thread.  The functions are meaningful only while the thread sleeps: the caller checks by the
scheduler's counters that it has not run meanwhile.  Needs CAP_SYS_ADMIN and a kernel with CONFIG_STACKTRACE.

Source: proc(5), /proc/PID/stack; Linux fs/proc/base.c: lines `[<0>] function+0x12/0x34 [module]`.
"""

from sfsample.process.thread_files import ThreadFiles

REFUSED = "kernel stacks cannot be read: that needs CAP_SYS_ADMIN, and a kernel with CONFIG_STACKTRACE"


def kernel_stack(files: ThreadFiles) -> tuple[str, ...] | None:
    """Return function names, innermost first; None: sfsample may not read them, or the thread has ended."""
    text = files.read("stack")
    if text is None:
        return None
    lines = text.decode("utf-8", "replace").splitlines()
    return tuple(line.partition("] ")[2].partition("+")[0] for line in lines if "] " in line)
