"""Explains why places in code have no name, and what the user can do.

Invariant: a hint names a package or a command only if the target's own distribution is known, because a guess
could be wrong (tests/symbolize/test_missing.py).
"""

import os
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.modules.module import Module
from sfsample.symbolize.perf_map import perf_map_path

# beginnings of the names of glibc's files; "libc.so" belongs to musl
_GLIBC_NAMES = ("libc.so.", "libc-", "ld-linux", "libm.so.", "libpthread", "ld-2")
_DEBIAN = ("debian", "ubuntu")
_REDHAT = ("fedora", "rhel", "centos")
_SYSTEM_PATHS = ("/usr/", "/lib", "/bin/", "/sbin/")
_MAX_OS_RELEASE_BYTES = 1 << 16
# last words of the reasons that no file, flag or restart can mend
_FINAL = ("its symbol table has no function there", "and its file closed", "does not list")
_PERF_MAP_HINT = (
    "start node with --perf-basic-prof, python with -X perf, "
    "java with -XX:+PreserveFramePointer (and then: jcmd PID Compiler.perfmap)"
)


class MissingName(NamedTuple):
    """Places without a name in a module or a process."""

    where: str  # path of the module, or "process PID"
    places: int  # number of places
    why: str
    hint: str = ""

    @property
    def can_be_mended(self) -> bool:
        """False if no file, flag or restart gives these places a name."""
        return not self.why.endswith(_FINAL)

    def __str__(self) -> str:
        count = "1 place has no name" if self.places == 1 else f"{self.places} places have no name"
        return f"{self.where}: {count}: {self.why}" + (f"; {self.hint}" if self.hint else "")


def module_without_name(
    module: Module, why: str, process_roots: Mapping[int, ProcessRoot], places: int
) -> MissingName:
    """Return how many `places` of a module have no name, and `why`; with a hint if debug symbols help."""
    hint = _hint(module.path, process_roots.values()) if why.startswith("stripped") else ""
    return MissingName(module.path, places, why, hint)


def generated_without_name(
    pid: int, process_root: ProcessRoot | None, places: int, has_perf_map: bool
) -> MissingName:
    """Return the reason why generated code has no name.  `has_perf_map`: the process's perf map was read."""
    if process_root is None:  # process of a profile that comes from a file
        return MissingName(f"process {pid}", places, "generated code, or code of a missing file")
    map_path = perf_map_path(process_root)
    if has_perf_map:
        return MissingName(f"process {pid}", places, f"generated code that {map_path} does not list")
    why = f"generated code (by a JIT), and the target's user has no {map_path}"
    return MissingName(f"process {pid}", places, why, _PERF_MAP_HINT)


def _hint(path: str, process_roots: Iterable[ProcessRoot]) -> str:
    distribution = _distribution(process_roots)
    name = os.path.basename(path)
    if not path.startswith(_SYSTEM_PATHS):
        return "keep the unstripped file, and give its directory with --debug-dir"
    if distribution & {*_DEBIAN}:
        if name.startswith(_GLIBC_NAMES):
            return "try: apt install libc6-dbg"
        return "find-dbgsym-packages (package debian-goodies) names the package with the symbols"
    if distribution & {*_REDHAT}:
        return f"try: dnf debuginfo-install $(rpm -qf {path})"
    return "a debug package, or --debuginfod, may have its symbols"


def _distribution(process_roots: Iterable[ProcessRoot]) -> frozenset[str]:
    """Return the words of ID and ID_LIKE in os-release(5) of the targets; empty if targets differ."""
    distributions = set()
    for root in [process.root for process in process_roots if process.root is not None] or [Root()]:
        data = root.map("/etc/os-release") or root.map("/usr/lib/os-release") or b""
        lines = data[:_MAX_OS_RELEASE_BYTES].decode("utf-8", "replace").splitlines()
        pairs = (line.partition("=") for line in lines)
        values = [value.strip("\"'") for key, _, value in pairs if key in ("ID", "ID_LIKE")]
        distributions.add(frozenset(" ".join(values).split()))
    return distributions.pop() if len(distributions) == 1 else frozenset()
