"""What a sleeping thread does in the kernel.

Law: nothing is stopped.  The functions are those of a thread that sleeps; whoever asks knows by its counters
that it has not run meanwhile.  Only CAP_SYS_ADMIN may see them (and the kernel must have been built to tell).

Source: proc(5), /proc/PID/stack; Linux fs/proc/base.c: lines `[<0>] function+0x12/0x34 [module]`.
"""

from sfsample.process.procfs import ProcFs

REFUSED = "kernel stacks cannot be read: that needs CAP_SYS_ADMIN, and a kernel with CONFIG_STACKTRACE"


def kernel_stack(proc: ProcFs, tid: int) -> tuple[str, ...] | None:
    """Return functions, innermost first; None when they may not be seen, or the thread has ended."""
    text = proc.task(tid, "stack")
    if text is None:
        return None
    lines = text.decode("utf-8", "replace").splitlines()
    return tuple(line.partition("] ")[2].partition("+")[0] for line in lines if "] " in line)
