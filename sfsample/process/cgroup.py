"""Finds the control group of processes.  Source: cgroups(7), /proc/PID/cgroup; proc_pid_mountinfo(5)."""

from collections.abc import Collection

from sfsample.process.procfs import read_text


def common_cgroup(pids: Collection[int]) -> str | None:
    """Return the directory of the version 2 control group that contains all processes; None: unknown.

    The directory must list the processes.  Otherwise the path in /proc belongs to another cgroup namespace,
    or only a part of the tree is mounted.
    """
    root, paths = unified_mount_point(), {path_of(pid) for pid in pids}
    if not root or len(paths) != 1 or None in paths:
        return None
    directory = f"{root}{paths.pop()}".rstrip("/")
    listed = read_text(f"{directory}/cgroup.procs").split()
    return directory if {*map(str, pids)} <= {*listed} else None


def path_of(pid: int) -> str | None:
    """Return the path of the version 2 control group of a process, as /proc shows it; None: unknown."""
    lines = read_text(f"/proc/{pid}/cgroup").split("\n")
    return next((line[3:] for line in lines if line.startswith("0::")), None)


def unified_mount_point() -> str:
    """Return the mount point of the control groups of version 2; empty: not mounted."""
    for line in read_text("/proc/self/mountinfo").split("\n"):
        fields, _, filesystem = line.partition(" - ")
        if filesystem.startswith("cgroup2 "):
            return fields.split()[4]
    return ""
