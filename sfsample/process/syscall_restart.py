"""System calls that a stop does not harm: the kernel carries on with them as if nothing had happened.

Law: a list of what is known to be safe, never of what is known to be harmful: a call that is not here is one
that a stop may make fail with EINTR.  tests/live/test_restart.py sees each of these come through, and the
others fail, but for those that mending.py makes begin again.

When a thread is stopped by PTRACE_INTERRUPT, a call that it sleeps in returns to the edge of the kernel.
With -ERESTARTSYS, -ERESTARTNOHAND, -ERESTARTNOINTR or -ERESTART_RESTARTBLOCK it begins again where it was, as
there is no signal handler to run; -EINTR goes to the program.  So the list in signal(7), which is about
handlers, is longer than what fails here: poll, nanosleep, msgrcv and others restart after a stop.

Source: signal(7), "Interruption of system calls"; Linux kernel/entry/common.c and arch_do_signal_or_restart;
fs/eventpoll.c, fs/aio.c, io_uring, ipc/sem.c and do_sigtimedwait return -EINTR.  A socket with SO_RCVTIMEO
does too (sock_intr_errno), and a driver may, so calls on a file count only if it is a pipe or alike.

Some sleeps with a time-out go on as restart_syscall(2): those that set a restart_block, which are FUTEX_WAIT
(kernel/futex/waitwake.c), poll (fs/select.c), and nanosleep and clock_nanosleep (kernel/time).
"""

from collections.abc import Sequence

from sfsample.process.procfs import Asleep, ProcFs
from sfsample.process.syscall_names import syscall_name, syscall_number

_ALWAYS = frozenset({
    "poll", "ppoll", "select", "pselect6", "nanosleep", "clock_nanosleep", "restart_syscall",
    "futex", "wait4", "waitid", "pause", "rt_sigsuspend",
    "msgrcv", "msgsnd", "mq_timedreceive", "mq_timedsend", "flock", "io_pgetevents",
})  # fmt: skip
_ON_PIPES = frozenset({"read", "readv", "write", "writev"})
_ANON = "anon_inode:"
_PIPES = ("pipe:", f"{_ANON}[eventfd]", f"{_ANON}[timerfd]", f"{_ANON}[signalfd]", f"{_ANON}inotify")


def restarts(proc: ProcFs, asleep: Asleep) -> bool:
    """Whether a thread that sleeps like this can be stopped without its noticing."""
    if asleep.number < 0:
        return True  # in a page fault, which is taken again; or stopped already
    name = syscall_name(asleep.number)
    if name in _ON_PIPES:
        return (proc.link(f"fd/{asleep.args[0]}") or "").startswith(_PIPES)
    return name in _ALWAYS


_BY_WAIT = {"futex": "futex", "poll": "poll", "cpu_nanosleep": "clock_nanosleep"}
_NO_POINTER = 4096  # numbers of clocks are below


def number_made(number: int, args: Sequence[int], wchan: str | None) -> int:
    """Return the number of the call as the thread made it, which may go on as restart_syscall.

    Its arguments are still there, and where it waits in the kernel tells which it was; the waiting of the two
    sleeps may be shown as their caller's.
    """
    if wchan is None or syscall_name(number) != "restart_syscall":
        return number
    sleep = "clock_nanosleep" if args[0] < _NO_POINTER else "nanosleep"
    name = next((call for part, call in _BY_WAIT.items() if part in wchan), sleep)
    return syscall_number(name) or number
