"""Names of system calls, from python-ptrace's tables.

Law: imported only when a name is shown; the tables are those of the machine we run on.
"""


def syscall_name(number: int) -> str | None:
    """Return the name, or None for a number that the table does not have."""
    from ptrace.syscall import SYSCALL_NAMES

    name: str | None = SYSCALL_NAMES.get(number)
    return name
