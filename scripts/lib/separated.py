"""Debug information that is taken out of a program, as distributions do it.

Law: the program is stripped, and what it had is in a directory of debug files, by build-id.
"""

import sys
from pathlib import Path

from lib.debian import filling, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from sfsample.formats.elf.image import ElfImage


def debug_files(directory: Path, program: Path) -> Path:
    """Return the directory, which is made when it is not there."""
    for _ in filling(directory):
        build_id = ElfImage(program.read_bytes(), program.name).build_id or ""
        debug = directory / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        debug.parent.mkdir(parents=True)
        run("objcopy", "--only-keep-debug", program, debug)
        run("strip", program)
    return directory
