"""Finds the shared libraries of this system that tests read."""

import os
from collections.abc import Iterator
from pathlib import Path

LIBRARY_DIRS = (
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
)


def library(name: str) -> str:
    """Return the path of a library that every system has or that scripts/setup installs."""
    for directory in LIBRARY_DIRS:
        path = Path(directory, name)
        if path.exists():
            return os.path.realpath(path)
    raise AssertionError(f"{name} is in none of {LIBRARY_DIRS}: scripts/setup dev installs it")


def libraries() -> Iterator[Path]:
    """Yield every shared library of the standard directories once."""
    seen = set()
    for directory in map(Path, LIBRARY_DIRS):
        for path in sorted(directory.glob("*.so*")) if directory.is_dir() else ():
            real = path.resolve()
            if real.is_file() and real.stat().st_size and real not in seen:
                seen.add(real)
                yield real
