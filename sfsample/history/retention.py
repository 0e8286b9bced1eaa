"""Keeps a history small: merges old slices, and deletes slices that are too old or too many.

Slices of a minute are kept for two days, then merged to slices of ten minutes, and after two weeks to slices
of an hour.  A slice that a trigger has pinned is not merged.

The file of a day is deleted `keep_for` seconds after the end of this day (90 days by default), or if the
history is too large.  The last day always stays.  Each merged slice is one commit, so if the process is
killed, the next process does the rest.

Invariant: the sums of each stack of each service stay the same (tests/history/test_retention.py).
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, suppress

from sfsample.history.facts import grouped, merge_key, merged_facts
from sfsample.history.files import HistoryFile
from sfsample.history.paths import DAY_S, file_names, lock, remove

_DUE_S = {"1h": 14 * DAY_S, "10m": 2 * DAY_S}  # tier -> age of a day whose slices are merged to this tier

Skipping = Callable[[str], AbstractContextManager[None]]  # `History.skipping`


def tidy(directory: str, now_s: float, keep_for_s: float, keep_bytes: int, skipping: Skipping) -> None:
    """Tidy a history, unless another process is tidying it."""
    fd = lock(directory, "")
    if fd is None:
        return
    try:
        for name in file_names(directory):
            tier = next((tier for tier, due_s in _DUE_S.items() if name.end_s + due_s <= now_s), "")
            if name.end_s + keep_for_s <= now_s:
                remove(name)
            elif tier:
                with skipping(name.path), closing(HistoryFile(name.path, write=True)) as file:
                    _merge(file, tier)
        for name in file_names(directory)[:-1]:
            if size_of(directory) > keep_bytes:
                remove(name)
    finally:
        os.close(fd)


def _merge(file: HistoryFile, tier: str) -> None:
    """Merge the slices of a file to those of a tier."""
    slices = (facts for facts in file.facts() if not facts.pinned)
    for group in grouped(slices, lambda facts: merge_key(facts, tier)).values():
        if {facts.tier for facts in group} != {tier} or len(group) > 1:
            with file.writing():
                file.merge(group, merged_facts(group, tier))
    file.compact()


def size_of(directory: str) -> int:
    """Return the size of a history in bytes."""
    size = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                size += entry.stat(follow_symlinks=False).st_size
    return size
