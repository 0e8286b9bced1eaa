"""Finds the files of an input, and reads these files as one report, for `convert` and `diff`."""

import os
from collections.abc import Iterable
from glob import glob, has_magic

from sfsample.cli.terminal import say
from sfsample.core.quantities import listed
from sfsample.errors import BadInput, SfsampleError
from sfsample.report.budget import ReadingBudget
from sfsample.report.formats import check_numbers, read_report
from sfsample.report.merge import merge
from sfsample.report.report import Report
from sfsample.report.suffixes import READABLE, is_profile

_MAX_SKIPPED = 5  # names in the message about skipped files


def find_files(inputs: Iterable[str], *, result: str = "", quiet: bool = False) -> list[str]:
    """Return the files of all inputs (`-`: standard input) except `result`.  Raises SfsampleError."""
    files: list[str] = []
    for path in inputs:
        is_pattern = has_magic(path) and not os.path.lexists(path)
        matches = sorted(glob(path, recursive=True)) if is_pattern else [path]
        if not matches:
            raise SfsampleError(f"no profile found: {path}: no file matches",
                                "* and ? match no / and no leading dot; **/ matches directories")  # fmt: skip
        for match in matches:
            files += _in_directory(match, result, quiet=quiet) if os.path.isdir(match) else [match]
    return files


def _in_directory(path: str, result: str, *, quiet: bool) -> list[str]:
    """Return the files in a directory that have the suffix of a profile, in the order of their names."""
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries if not entry.name.startswith("."))
    except OSError as failure:
        raise SfsampleError(f"cannot read: {path}: {failure.strerror}") from None
    files = {name: os.path.join(path, name) for name in names}
    profiles = [name for name in names if is_profile(name) and os.path.isfile(files[name])
                and os.path.realpath(files[name]) != result]  # fmt: skip
    skipped = [name for name in names if name not in {*profiles}]
    if not profiles:
        others = f"it has {listed(skipped, _MAX_SKIPPED)}" if skipped else "it is empty"
        raise SfsampleError(f"no profile found: {path}: {others}", "searched for files that end in "
                            f"{', '.join(READABLE)} (also with .gz), but not in subdirectories")  # fmt: skip
    if skipped and not quiet:
        say(f"skipped in {path}: {listed(skipped, _MAX_SKIPPED)}")
    return [files[name] for name in profiles]


def read_files(paths: list[str]) -> Report:
    """Return one report of all files.  Raises SfsampleError."""
    try:
        report = merge(map(read_report, paths), ReadingBudget(size_of(paths)))
        check_numbers(report)
    except BadInput as failure:
        raise SfsampleError(f"cannot merge: {failure}", "merge fewer files") from None
    return report


def size_of(paths: list[str]) -> int:
    """Return the size of all files, in bytes on the disk."""
    return sum(map(os.path.getsize, filter(os.path.isfile, paths)))
