"""Unpacks three generations of binutils, one for each version of SFrame; nothing is installed.

Assembler, linker and readelf of a generation are of one Debian release.
"""

import tempfile
from pathlib import Path

from lib.debian import filling, unpack_packages, wrap

RELEASES = {1: "bookworm", 2: "trixie", 3: "sid"}
TOOLS = {"as": "as", "ld": "ld.bfd", "readelf": "readelf"}
CACHE = Path(tempfile.gettempdir()) / "sfsample-toolchains"
NATIVE = "x86_64-linux-gnu"


def toolchain(generation: int, cache: Path = CACHE) -> Path:
    """Return the directory of `as`, `ld` and `readelf` of a generation, for `gcc -B`; fetch them once."""
    root = cache / f"v{generation}"
    for empty in filling(root):
        files = unpack_packages(empty, RELEASES[generation], f"binutils-{NATIVE.replace('_', '-')}")
        wrap(files, empty / "bin", {name: f"{NATIVE}-{real}" for name, real in TOOLS.items()})
    return root / "bin"
