"""Names functions of the kernel by their addresses, from /proc/kallsyms.

The kernel shows addresses to users with CAP_SYSLOG; if kernel.kptr_restrict is 0, also to users that may
sample the kernel.  (Others see 0.)  A line is `address type name`, then a tab and `[module]` for code of a
module.  All addresses have 16 digits, so sorted lines are ordered by address.  122,000 lines take 11 MB.

Source: Linux kernel/kallsyms.c (s_show, kallsyms_show_value); nm(1), types of symbols.
"""

from bisect import bisect_right
from functools import cache

_PATH = "/proc/kallsyms"
_TYPE = 17  # index of the type in a line
_NAME = 19  # index of the name
_CODE, _WEAK, _LOCAL = b"tTwW", b"wW", b"t"
_TRIAL_LINES = 10_000  # lines to check; the first symbols are 0, or offsets in the memory of a CPU
KERNEL_SYMBOLS_HIDDEN = (
    "no kernel frames: /proc/kallsyms hides addresses (needs CAP_SYSLOG, or kernel.kptr_restrict 0)"
)


def shows_addresses(path: str = _PATH) -> bool:
    """Return True if the kernel shows the addresses of its functions."""
    try:
        with open(path, "rb") as file:
            lines = (line for line, _ in zip(file, range(_TRIAL_LINES), strict=False))
            return any(line[_TYPE] in _CODE and line[:_TYPE].strip(b"0 ") for line in lines)
    except OSError:
        return False


class KernelSymbols:
    """The functions of the kernel; the first look-up reads the file."""

    def __init__(self, path: str = _PATH) -> None:
        self._path = path
        self._lines: list[bytes] = []  # lines of functions, sorted by address
        self._name = cache(self._find)

    def names(self, chain: tuple[int, ...]) -> tuple[str, ...]:
        """Return the functions of a call chain: a pc, followed by return addresses."""
        return tuple(self._name(address - bool(at)) for at, address in enumerate(chain))

    def _find(self, address: int) -> str:
        """Return the name of the last function that begins at or before an address.

        If several names have this address, the choice follows perf: a name that is not weak, then a global
        name, then the fewest leading underscores, then the longest name.
        """
        if not self._lines:
            self._lines = _read(self._path)
        end = bisect_right(self._lines, b"%016x~" % address)
        if not end:
            return "[unknown]"
        first = bisect_right(self._lines, self._lines[end - 1][: _TYPE - 1])
        return min(self._lines[first:end], key=_rank)[_NAME:].split()[0].decode("utf-8", "replace")


def _read(path: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            return sorted(line for line in file if line[_TYPE] in _CODE)
    except OSError:
        return []


def _rank(line: bytes) -> tuple[bool, bool, int, int]:
    kind, name = line[_TYPE], line[_NAME:].split()[0]
    return kind in _WEAK, kind in _LOCAL, len(name) - len(name.lstrip(b"_")), -len(name)
