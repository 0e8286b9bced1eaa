"""Prevents stops that would cost a program the privileges of its file: setuid, setgid, capabilities.

execve(2) gives no privileges while a process without CAP_SYS_PTRACE traces the calling thread.  /proc does
not show that a running thread is in execve.  A thread that is asked to stop during execve stops only at the
end of execve, without the privileges.

Most processes that execute a program like sudo were created for this purpose: a child of a shell, a wrapper
script.  So sfsample stops no young process, that is, no process that has used little CPU time.  (The age in
seconds says less, because the process may have waited for a CPU.)

Source: Linux fs/exec.c, check_unsafe_exec, and begin_new_exec (clears PF_FORKNOEXEC); security/commoncap.c,
cap_bprm_creds_from_file; kernel/capability.c, ptracer_capable: the kernel checks the capability in the user
namespace of the target.  sfsample's capabilities count in this namespace if sfsample can trace the target.
"""

import os

from sfsample.process.permission.gates import CAP_SYS_PTRACE
from sfsample.process.proc_text import PF_FORKNOEXEC, Stat, parse_status
from sfsample.process.procfs import read_text, stat_of

TOO_YOUNG = (
    "without CAP_SYS_PTRACE no running thread of a young process is stopped: a setuid program could lose "
    "its privileges (run as root, or permit timers: sysctl kernel.perf_event_paranoid=1)"
)
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FORKED_S = 0.5  # CPU time in s up to which a process is young if it has not called execve(2)
_EXECUTED_S = 0.1  # CPU time in s up to which a process is young if it has called execve(2)


def stops_keep_privileges() -> bool:
    """Return True if sfsample has CAP_SYS_PTRACE: then execve(2) gives privileges to a traced thread, too."""
    effective = parse_status(read_text("/proc/self/status")).get("CapEff", "0")
    return bool(int(effective, 16) >> CAP_SYS_PTRACE & 1)


def is_young(process: Stat) -> bool:
    """Return True if a process may have been created to execute another program."""
    least_s = _FORKED_S if process.flags & PF_FORKNOEXEC else _EXECUTED_S
    return process.cpu < least_s * _TICKS_PER_S


def stops_cost_privileges(pid: int) -> bool:
    """Return True if process `pid` may lose privileges when one of its running threads is stopped."""
    process = None if stops_keep_privileges() else stat_of(pid)
    return process is not None and is_young(process)
