"""Defines which processes a user names, and in which way."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Target:
    """Processes by ids, or by one of the other ways."""

    pid: tuple[int, ...] = ()
    name: str | None = None  # a process by its name, or a part of its command line
    all: bool = False  # with `name`: every process that matches
    unit: str | None = None  # of systemd
    cgroup: str | None = None
    container: str | None = None  # an id, or its begin
    pod: str | None = None  # a uid, or its begin
    user: str | None = None
    busiest: int | None = None  # so many processes
