"""Why places have no name, and what would help.

Law: a hint names a package or a command only where the target's own distribution is known; what is known to
be wrong is said, what would be a guess is not.
"""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.modules.module import Module
from sfsample.symbolize.perf_map import path_of

_GLIBC = ("libc.so.", "libc-", "ld-linux", "libm.so.", "libpthread", "ld-2")  # musl's is plain libc.so
_DEBIAN = ("debian", "ubuntu")
_REDHAT = ("fedora", "rhel", "centos")
_PACKAGED = ("/usr/", "/lib", "/bin/", "/sbin/")
_MOST = 1 << 16
_GENERATORS = (
    "start node with --perf-basic-prof, python with -X perf, "
    "java with -XX:+PreserveFramePointer (and then: jcmd PID Compiler.perfmap)"
)


class MissingName(NamedTuple):
    """Places without a name.  `where` is a module's path or a process; `hint` may be empty."""

    where: str
    places: int
    why: str
    hint: str = ""

    def __str__(self) -> str:
        count = "1 place has no name" if self.places == 1 else f"{self.places} places have no name"
        return f"{self.where}: {count}: {self.why}" + (f"; {self.hint}" if self.hint else "")


def module_without_name(
    module: Module, why: str, homes: Mapping[int, ProcessRoot], places: int
) -> MissingName:
    """Tell about a module; a hint is given where debug symbols would help."""
    hint = _hint(module.path, homes.values()) if why.startswith("stripped") else ""
    return MissingName(module.path, places, why, hint)


def generated_without_name(pid: int, home: ProcessRoot | None, places: int, known: bool) -> MissingName:
    """Tell about code of a process that lies in no file."""
    if home is None:  # out of a file: no more is known of the process
        return MissingName(f"process {pid}", places, "generated code, or of a file that was not found")
    name = path_of(home)
    if known:
        return MissingName(f"process {pid}", places, f"generated code that {name} does not list")
    why = f"generated code (a JIT's), and no {name} of the target's user"
    return MissingName(f"process {pid}", places, why, _GENERATORS)


def _hint(path: str, homes: Iterable[ProcessRoot]) -> str:
    words = _distribution(homes)
    name = os.path.basename(path)
    if not path.startswith(_PACKAGED):
        return "keep the unstripped file, and give its directory with --debug-dir"
    if words & {*_DEBIAN}:
        if name.startswith(_GLIBC):
            return "try: apt install libc6-dbg"
        return "find-dbgsym-packages (package debian-goodies) names the package with its symbols"
    if words & {*_REDHAT}:
        return f"try: dnf debuginfo-install $(rpm -qf {path})"
    return "a debug package, or --debuginfod, may have its symbols"


def _distribution(homes: Iterable[ProcessRoot]) -> set[str]:
    """Return ID and ID_LIKE of os-release(5) where the targets live; nothing where they differ."""
    roots = [home.root for home in homes if home.root is not None] or [Root()]
    found = {frozenset(_words(root)) for root in roots}
    return set(found.pop()) if len(found) == 1 else set()


def _words(root: Root) -> list[str]:
    fd = root.open("/etc/os-release")
    fd = root.open("/usr/lib/os-release") if fd is None else fd
    if fd is None:
        return []
    with open(fd, "rb") as file:
        lines = file.read(_MOST).decode("utf-8", "replace").splitlines()
    pairs = (line.partition("=") for line in lines)
    values = [value.strip("\"'") for key, _, value in pairs if key in ("ID", "ID_LIKE")]
    return " ".join(values).split()
