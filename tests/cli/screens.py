"""Reads and writes golden files of screens: command lines, what each prints, and its exit code."""

import gzip
import re
from pathlib import Path

from sfsample.cli import main


def read_screens(path: Path) -> dict[str, str]:
    """Return what each command prints, by its prompt: `$ sfsample ...`, or that of another user."""
    parts = re.split(r"(?m)^(\w*\$ .*)\n", path.read_text())
    return {prompt: text.strip("\n") for prompt, text in zip(parts[1::2], parts[2::2], strict=True)}


def write_screens(path: Path, screens: dict[str, str]) -> None:
    path.write_text("\n\n".join(f"{prompt}\n{text}" for prompt, text in screens.items()) + "\n")


def make_files(directory: Path) -> None:
    """Make the files that the command lines name."""
    (directory / "folder").mkdir()
    (directory / "notes.txt").write_text("hello world, these are notes\n")
    (directory / "empty.json").touch()
    (directory / "binary").write_bytes(bytes(range(256)))
    (directory / "nonsense.json.gz").write_bytes(gzip.compress(b"nonsense\n"))
    (directory / "cut.json").write_text('{"schema": "sfsample.profile/1", "rate_hz": 99, "weights": ["sam')
    (directory / "good.folded").write_text("redis;main;serve 30\nredis;main;sleep 10\n")
    assert main(["convert", f"{directory}/good.folded", "-o", f"{directory}/good.json", "-q"]) == 0
