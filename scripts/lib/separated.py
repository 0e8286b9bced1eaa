"""Moves the debug information of a program to a separate file, by build-id, as distributions do."""

import sys
from pathlib import Path

from lib.debian import filling, run

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from sfsample.formats.elf.image import ElfImage


def debug_files(directory: Path, program: Path) -> Path:
    """Strip the program; return the directory of its debug file."""
    for _ in filling(directory):
        build_id = ElfImage(program.read_bytes(), program.name).build_id or ""
        debug = directory / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug"
        debug.parent.mkdir(parents=True)
        run("objcopy", "--only-keep-debug", program, debug)
        run("strip", program)
    return directory
