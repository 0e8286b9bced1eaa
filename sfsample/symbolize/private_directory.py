"""Makes a directory for a cache, and says whether another user can put something else in its place.

Root is trusted, as it can do anything.  Each directory above counts, as the path names it and as its symbolic
links resolve; in a sticky one (/tmp) a user can only rename what is the user's own, inode(7).
"""

import os
import stat
from pathlib import Path


def make_private(directory: str) -> bool:
    """Make a directory and those above it, for the user only; return whether no other user can write there.

    Raises OSError.
    """
    path = Path(directory).absolute()
    for each in (*reversed(path.parents), path):
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
    return is_private(directory)


def is_private(directory: str) -> bool:
    """Whether no other user can write to a directory, or replace it.  Raises OSError where there is none."""
    named = Path(os.path.abspath(directory))
    resolved = named.resolve()
    return all(_is_protected(each) for path in (named, resolved) for each in (path, *path.parents))


def _is_protected(path: Path) -> bool:
    found = path.lstat()
    may_write = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022
    return found.st_uid in (0, os.geteuid()) and (not may_write or bool(found.st_mode & stat.S_ISVTX))
