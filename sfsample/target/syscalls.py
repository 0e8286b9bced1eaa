"""Names of system calls, from python-ptrace's tables; of s390x, which it does not know, from system-calls'.

Law: imported only when a name is shown; the tables are those of the machine we run on.
"""

from functools import cache


def syscall_name(number: int) -> str | None:
    """Return the name, or None for a number that the table does not have."""
    return _names().get(number)


@cache
def _names() -> dict[int, str]:
    try:
        from ptrace.syscall import SYSCALL_NAMES
    except NotImplementedError:
        return _of_s390x()
    names: dict[int, str] = SYSCALL_NAMES
    return names


def _of_s390x() -> dict[int, str]:
    from system_calls.tables.s390x import syscalls_s390x

    return {number: name for name, number in syscalls_s390x.items()}
