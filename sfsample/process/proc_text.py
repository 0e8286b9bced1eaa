"""Parses the text of /proc files.  All functions are pure: text goes in, values come out.

Two kinds of files are parsed elsewhere: memory maps (`modules.mapping`), and the files that only
`process.facts` and `process.permission` read.

Source: proc(5); Linux fs/proc/base.c, proc_pid_stack; cgroups(7), /proc/PID/cgroup.
"""

import re
from functools import lru_cache
from typing import NamedTuple

from sfsample.core.foreign import total
from sfsample.core.snapshot import LastRun

PF_KTHREAD = 0x00200000  # bit of `Stat.flags`: a kernel thread
PF_FORKNOEXEC = 0x00000040  # bit of `Stat.flags`: no execve(2) since the process was created
_LAST_RUN = re.compile(  # lines `name   :   value`, in this order
    rb"^se\.exec_start *: *(\S+)\n"
    rb"(?:(?:(?!nr_sw).*\n)*nr_switches *: *(\d+)\n)?"
    rb"(?:(?:(?!se\.avg\.last).*\n)*se\.avg\.last_update_time *: *(\d+)\n)?",
    re.MULTILINE,
)
_CONTAINER = re.compile(r"(?:.*:|docker-|cri-containerd-|crio-|libpod-)?([0-9a-f]{64})(?:\.scope)?")
_POD = re.compile(r"(?:.*-)?pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?:\.slice)?")
_CGROUPS = 4096  # cached texts: the processes of a control group have the same text
_PARSED = 8  # cached texts of schedstat: most are parsed several times
_IDLE = slice(4, 6)  # columns idle and iowait; column 0 is the name of the CPU


class Stat(NamedTuple):
    """The fields of /proc/PID/[task/TID/]stat that sfsample uses.  Times are in clock ticks."""

    name: str
    state: str
    flags: int
    starttime: int  # time since boot
    program: tuple[bytes, ...] = ()  # bounds of code, stack, data and arguments; execve(2) changes the bounds
    parent: int = 0
    threads: int = 1
    cpu: int = 0  # CPU time in clock ticks; for a process: of all its threads, living or ended
    rss: int = 0  # pages
    reaped_cpu: int = 0  # CPU time of the ended children that the process has waited for
    exit_code: int = 0  # for a stopped process: signal that stopped it (since Linux 5.17); 0: unknown

    @property
    def is_over(self) -> bool:
        """True if every thread of the process has ended (it is a zombie)."""
        return self.state in "ZX" and self.threads <= 1

    @property
    def stack_top(self) -> int:
        """Top of the first thread's stack, below arguments and environment; 0: the kernel hides it."""
        return int(self.program[2]) if self.program else 0


@total
def parse_stat(data: bytes) -> Stat:
    """Parse one stat line; the name is between the first "(" and the last ")"."""
    left, right = data.index(b"("), data.rindex(b")")
    fields = data[right + 2 :].split()
    return Stat(data[left + 1 : right].decode("utf-8", "replace"), fields[0].decode(),
                int(fields[6]), int(fields[19]),
                (*fields[23:26], *fields[42:49]), int(fields[1]), int(fields[17]),
                int(fields[11]) + int(fields[12]), int(fields[21]),
                int(fields[13]) + int(fields[14]), int(fields[49]))  # fmt: skip


class SyscallInfo(NamedTuple):
    """The system call in which a thread sleeps, with pc and sp at its entry: /proc/PID/task/TID/syscall."""

    number: int  # -1 outside a system call (in a page fault, or stopped)
    args: tuple[int, ...]  # empty outside a system call
    sp: int = 0
    pc: int = 0
    restarted: bool = False  # True: the kernel shows restart_syscall(2); `number` is the original call


@total
def parse_syscall(data: bytes) -> SyscallInfo | None:
    """Parse a syscall file, "NR ARG*6 SP PC" or "-1 SP PC"; None if the thread runs, or is ready to run."""
    number, *words = data.split()
    if number == b"running":
        return None
    *args, sp, pc = (int(word, 16) for word in words)
    return SyscallInfo(int(number), tuple(args), sp, pc)


class SchedStat(NamedTuple):
    """The schedstat figures of a thread: CPU time, time waited for a CPU, number of times run."""

    ran_ns: int
    waited_ns: int
    times: int


@lru_cache(maxsize=_PARSED)
@total
def parse_schedstat(counters: bytes | None) -> SchedStat:
    """Parse a schedstat file; None if the counters are of another kind (`ThreadFiles.counters`)."""
    return SchedStat(*map(int, (counters or b"").split()))


@total
def parse_last_run(text: bytes | None) -> LastRun | None:
    """Parse a `sched` file: the time when a thread last started or stopped running; None: unknown."""
    match = _LAST_RUN.search(text or b"")
    if match is None:
        return None
    at, left, renewed = match.groups()
    return LastRun(at, int(renewed or 0), int(left or -1))


def parse_kernel_stack(text: bytes) -> tuple[str, ...]:
    """Return the functions of a stack file, innermost first, from lines `[<0>] name+0x12/0x34 [module]`."""
    lines = text.decode("utf-8", "replace").split("\n")
    return tuple(line.partition("] ")[2].partition("+")[0] for line in lines if "] " in line)


def parse_status(text: str) -> dict[str, str]:
    """Parse the lines "key: value" of a status file."""
    rows = (line.partition(":") for line in text.split("\n") if line)
    return {key: value.strip() for key, _, value in rows}


def parse_last_id(loadavg: bytes) -> bytes | None:
    """Return the process or thread id that the kernel assigned last: the last field of /proc/loadavg."""
    fields = loadavg.split()
    return fields[-1] if fields else None


def control_groups(cgroup: str) -> set[str]:
    """Return all names in the paths of /proc/PID/cgroup: systemd's units, and groups above and below units.

    Only the hierarchies that systemd uses are read: version 2, or "name=systemd" of version 1.
    """
    rows = (row for row in _groups(cgroup) if row[1] in {"", "name=systemd"})
    return {name for *_, path in rows for name in path.split("/")}


def control_group_paths(cgroup: str) -> list[str]:
    """Return the paths in /proc/PID/cgroup, except the root: version 2 first, then systemd's, then others."""
    rows = sorted(_groups(cgroup), key=lambda row: (row[1] != "", row[1] != "name=systemd"))
    return [path for _, _, path in rows if path.strip("/")]


@lru_cache(maxsize=_CGROUPS)
def container_ids(cgroup: str) -> tuple[str, ...]:
    """Return the ids of the containers of a process, the innermost last (docker, containerd, CRI-O, podman).

    The monitor of a container (`crio-conmon-`, `libpod-conmon-`) runs outside of the container.
    """
    return _matches(_CONTAINER, cgroup)


@lru_cache(maxsize=_CGROUPS)
def pod_uids(cgroup: str) -> tuple[str, ...]:
    """Return the uid of the Kubernetes pod of a process, with hyphens; (): the process is in no pod."""
    return tuple(uid.replace("_", "-") for uid in _matches(_POD, cgroup))


@lru_cache(maxsize=_CGROUPS)
def cgroup_paths(cgroup: str) -> frozenset[str]:
    """Return the paths of the control groups of a process, and of all groups above them."""
    names = [path.rstrip("/").split("/") for *_, path in _groups(cgroup)]
    return frozenset("/".join(each[:end]) or "/" for each in names for end in range(1, len(each) + 1))


def _matches(pattern: re.Pattern[str], cgroup: str) -> tuple[str, ...]:
    names = (name for *_, path in _groups(cgroup) for name in path.split("/"))
    return tuple(dict.fromkeys(match[1] for name in names if (match := pattern.fullmatch(name))))


def _groups(cgroup: str) -> list[list[str]]:
    """Return number, controllers and path of each line; a path may have any character but the newline."""
    return [line.split(":", 2) for line in cgroup.split("\n") if line.count(":") >= 2]


@total
def parse_cpu_idle(text: str) -> dict[int, int]:
    """Return the idle time of each CPU of /proc/stat, in clock ticks."""
    rows = (line[3:].split() for line in text.splitlines() if line.startswith("cpu"))
    own = (row for row in rows if row[0].isdecimal() and len(row) > _IDLE.stop)
    return {int(row[0]): sum(map(int, row[_IDLE])) for row in own}
