"""Names of system calls, from python-ptrace's tables; of s390x, which it does not know, from system-calls'.

Law: imported only when a name is shown; the tables are those of the machine we run on.
"""

import os
from functools import cache


def syscall_name(number: int) -> str | None:
    """Return the name, or None for a number that the table does not have."""
    return _names().get(number)


def syscall_number(name: str) -> int | None:
    """Return the number, or None for a name that the table does not have."""
    return next((number for number, known in _names().items() if known == name), None)


@cache
def _names() -> dict[int, str]:
    return _of_python_ptrace(os.uname().machine) or _of_s390x()


def _of_python_ptrace(machine: str) -> dict[int, str]:
    """Return a table by itself: its package imports what interprets arguments, a tenth of a dump's time."""
    from importlib.util import module_from_spec, spec_from_file_location

    from ptrace import __path__ as places

    spec = spec_from_file_location("_syscall_names", f"{places[0]}/syscall/linux/{machine}.py")
    if spec is None or spec.loader is None:
        return {}
    table = module_from_spec(spec)
    try:
        spec.loader.exec_module(table)
    except FileNotFoundError:
        return {}
    names: dict[int, str] = table.SYSCALL_NAMES
    return names


def _of_s390x() -> dict[int, str]:
    from system_calls.tables.s390x import syscalls_s390x

    return {number: name for name, number in syscalls_s390x.items()}
