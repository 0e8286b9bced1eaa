"""Keeps a history small: merges old slices, deletes slices that are too old or too many (docs/history.md).

Pinned slices are not merged: those that a trigger has pinned, and those near a change of the build-id.  If
the history is too large, damaged files that were set aside are deleted first, and pinned slices last.  Each
merged slice is one commit, so the next process can continue the work of a killed process.

Invariant: the sums of each stack of each service stay the same (tests/history/test_retention.py).
"""

import os
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, closing, suppress
from itertools import pairwise

from sfsample.history.facts import SliceFacts, grouped, merge_key, merged_facts
from sfsample.history.files import HistoryFile
from sfsample.history.paths import DAY_S, file_names, files_set_aside, lock, remove

_DUE_S = {"1h": 14 * DAY_S, "10m": 2 * DAY_S}  # tier -> age of a day whose slices are merged to this tier
_PINNED_S = 3600.0  # seconds before and after a change of the build-id

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
        for name, path in files_set_aside(directory):
            if name.end_s + keep_for_s <= now_s or size_of(directory) > keep_bytes:
                os.unlink(path)
        _shrink(directory, keep_bytes, skipping)
    finally:
        os.close(fd)


def _merge(file: HistoryFile, tier: str) -> None:
    slices = [] if file.tiers() <= {tier} else _facts(file)
    for group in grouped(slices, lambda facts: merge_key(facts, tier)).values():
        with file.writing():
            if group[0].pinned:
                file.pin(group[0])
            elif {facts.tier for facts in group} != {tier} or len(group) > 1:
                file.merge(group, merged_facts(group, tier))
    file.compact()


def _shrink(directory: str, keep_bytes: int, skipping: Skipping) -> None:
    """Delete the oldest slices until `keep_bytes` remain: pinned slices last, and the last day never."""
    names = file_names(directory)[:-1]
    for name in names:
        if size_of(directory) > keep_bytes:
            with skipping(name.path), closing(HistoryFile(name.path, write=True)) as file:
                with file.writing():
                    facts = _facts(file)
                    file.delete(each for each in facts if not each.pinned)
                if not any(each.pinned for each in facts):
                    remove(name)
                file.compact()
    for name in names:
        if size_of(directory) > keep_bytes:
            remove(name)


def size_of(directory: str) -> int:
    """Return the size of a history in bytes."""
    size = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                size += entry.stat(follow_symlinks=False).st_size
    return size


def _facts(file: HistoryFile) -> list[SliceFacts]:
    """Return the facts of a file, the oldest first; slices near a change of the build-id are pinned."""
    found = sorted(file.facts(), key=lambda facts: facts.begin_s)
    built = grouped((facts for facts in found if facts.build_id), _origin)
    changes = {origin: [new.begin_s for old, new in pairwise(slices) if new.build_id != old.build_id]
               for origin, slices in built.items()}  # fmt: skip
    return [facts._replace(pinned=facts.pinned or any(
                facts.begin_s - _PINNED_S <= at_s <= facts.end_s + _PINNED_S
                for at_s in changes.get(_origin(facts), ())))
            for facts in found]  # fmt: skip


def _origin(facts: SliceFacts) -> Hashable:
    """Return the key of a slice; build-ids are compared between slices with equal keys."""
    return facts.service, tuple(sorted(facts.labels.items()))
