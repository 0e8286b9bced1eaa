"""Defines the ways in which a user names processes."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """The processes that a user names: by id, by name, or by one of the other fields."""

    pid: tuple[int, ...] = ()
    name: str | None = None  # name of a process, or a part of its command line
    all: bool = False  # with `name`: every process that matches
    unit: str | None = None  # name of a systemd unit
    cgroup: str | None = None
    container: str | None = None  # id of a container, or the beginning of the id
    pod: str | None = None  # uid of a pod, or the beginning of the uid
    user: str | None = None
    busiest: int | None = None  # number of processes: those that use the most CPU time
