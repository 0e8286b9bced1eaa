"""Lists the system calls that the kernel restarts after a stop, so that the thread does not notice the stop.

The list has only calls that are safe for certain.  A stop may make any other call fail with EINTR.
Invariant: no listed call notices a stop (tests/live/test_sleeping_threads.py).  The test also names the calls
that fail, the calls that `syscall_mending` restarts, and four safe calls that the list lacks.

When PTRACE_INTERRUPT stops a sleeping thread, its call returns an error inside the kernel.  If the error is
-ERESTARTSYS, -ERESTARTNOHAND, -ERESTARTNOINTR or -ERESTART_RESTARTBLOCK, the kernel restarts the call,
because no signal handler has to run.  Only the error -EINTR reaches the program.  signal(7) lists calls that
fail after a signal handler; some of them restart after a stop: poll, nanosleep, msgrcv and others.

Source: signal(7), "Interruption of system calls"; Linux kernel/entry/common.c and arch_do_signal_or_restart;
fs/eventpoll.c, fs/aio.c, io_uring, ipc/sem.c and do_sigtimedwait return -EINTR.  A socket with SO_RCVTIMEO
returns -EINTR, too (sock_intr_errno); so may a driver.  Therefore read and write are safe only on pipes and
eventfds.  A write of more than PIPE_BUF bytes (pipe(7)) may have written only a part.  Then a stop makes the
write return early, with the size of this part (fs/pipe.c, anon_pipe_write).

Some sleeps with a time-out set a restart_block, and continue as restart_syscall(2): FUTEX_WAIT
(kernel/futex/waitwake.c), poll (fs/select.c), nanosleep and clock_nanosleep (kernel/time).
"""

from collections.abc import Sequence

from sfsample.process.proc_text import SyscallInfo
from sfsample.process.procfs import ProcFs
from sfsample.process.syscall_names import syscall_name, syscall_number

_ALWAYS = frozenset({
    "poll", "ppoll", "select", "pselect6", "nanosleep", "clock_nanosleep", "restart_syscall",
    "futex", "wait4", "waitid", "pause", "rt_sigsuspend",
    "msgrcv", "msgsnd", "mq_timedreceive", "mq_timedsend", "flock", "io_pgetevents",
})  # fmt: skip
_ON_PIPES = frozenset({"read", "readv", "write"})
_PIPE_BUF = 4096  # bytes
_ANON = "anon_inode:"
_PIPES = ("pipe:", f"{_ANON}[eventfd]", f"{_ANON}[timerfd]", f"{_ANON}[signalfd]", f"{_ANON}inotify")


def restarts(proc: ProcFs, asleep: SyscallInfo) -> bool:
    """Return True if a stop of a thread that sleeps in this call has no effect on the call."""
    if asleep.number < 0:
        return True  # a page fault, which the CPU repeats; or a stopped thread
    name = syscall_name(asleep.number)
    if name in _ON_PIPES:
        is_whole = name != "write" or asleep.args[2] <= _PIPE_BUF
        return is_whole and (proc.link(f"fd/{asleep.args[0]}") or "").startswith(_PIPES)
    return name in _ALWAYS


_BY_WCHAN = {"futex": "futex", "poll": "poll", "cpu_nanosleep": "clock_nanosleep"}
_MIN_POINTER = 4096  # lowest pointer; clock numbers are smaller


def number_made(number: int, args: Sequence[int], wchan: str | None) -> int:
    """Return the number of the original call if the kernel shows restart_syscall; otherwise `number`.

    `args` are still those of the original call.  `wchan` (the kernel function in which the thread waits)
    identifies the call.  If `wchan` is not in the table, the call is nanosleep or clock_nanosleep.
    """
    if wchan is None or syscall_name(number) != "restart_syscall":
        return number
    sleep = "clock_nanosleep" if args[0] < _MIN_POINTER else "nanosleep"
    name = next((call for part, call in _BY_WCHAN.items() if part in wchan), sleep)
    return syscall_number(name) or number
