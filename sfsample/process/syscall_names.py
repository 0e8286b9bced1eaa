"""Looks up names and numbers of this machine's system calls: in python-ptrace; for s390x, in system-calls."""

import os
from functools import cache
from importlib import import_module


def syscall_name(number: int) -> str | None:
    """Return the name of a system call; None: the table does not have the number."""
    return _names().get(number)


def syscall_number(name: str) -> int | None:
    """Return the number of a system call; None: the table does not have the name."""
    return next((number for number, known in _names().items() if known == name), None)


@cache
def _names() -> dict[int, str]:
    if os.uname().machine == "s390x":
        from system_calls.tables.s390x import syscalls_s390x

        return {number: name for name, number in syscalls_s390x.items()}
    import_module("sfsample.process.ptrace")  # the module that keeps python-ptrace from starting a program
    from ptrace.syscall import SYSCALL_NAMES

    names: dict[int, str] = SYSCALL_NAMES
    return names
