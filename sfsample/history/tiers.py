"""Keeps a history small: merges the slices of a day that is over, deletes what is too old or too much.

Slices of a minute are kept for two days, then merged to ten minutes; after two weeks to hours.  Pinned slices
are not merged, and are the last to be deleted for their size; nor are those within an hour of a change of the
build-id.

A file is replaced in three steps, each of which may be the last: the new one is written whole under another
name, it is renamed into place, the old one is unlinked.  Between the last two both exist, and the new one
says which it replaces.

Invariant: the sums of each stack of each service stay the same (tests/history/test_tiers.py).
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise

from sfsample.errors import BadInput
from sfsample.history.facts import SliceFacts, merge_key, merged_facts
from sfsample.history.files import DAY_S, FileName, HistoryFile, file_names, remove
from sfsample.history.lock import lock

_NEXT = {"1m": ("10m", 2 * DAY_S), "10m": ("1h", 14 * DAY_S)}  # the next tier, and when it is due
_PINNED_S = 3600.0  # before and after a change of the build-id
_TEMPORARY = ".new"


def tidy(directory: str, now_s: float, keep_for_s: float, keep_bytes: int) -> Iterator[str]:
    """Tidy a history, unless another process does; yield a sentence for each file that is damaged."""
    fd = lock(os.path.join(directory, ".tidy.lock"))
    if fd is None:
        return
    try:
        _remove_remains(directory)
        for name in file_names(directory):
            if name.end_s + keep_for_s <= now_s:
                remove(name)
        for tier, (following, age_s) in _NEXT.items():
            for name in file_names(directory):
                if name.tier == tier and name.end_s + age_s <= now_s:
                    yield from _replace(name, following)
        yield from _shrink(directory, keep_bytes)
    finally:
        os.close(fd)


def _remove_remains(directory: str) -> None:
    """Remove what was left by processes that were killed."""
    for name in os.listdir(directory):
        if f".sqlite{_TEMPORARY}" in name:
            os.unlink(os.path.join(directory, name))


def _shrink(directory: str, keep_bytes: int) -> Iterator[str]:
    """Delete the oldest slices until so many bytes are left: first what is not pinned; never the last day."""
    names = file_names(directory)
    for name in (name for name in names if name.day < names[-1].day):
        if _size(directory) <= keep_bytes:
            return
        yield from _replace(name, "1h", only_pinned=True)
    for name in file_names(directory):
        if name.day < names[-1].day and _size(directory) > keep_bytes:
            remove(name)


def _size(directory: str) -> int:
    size = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                size += entry.stat(follow_symlinks=False).st_size
    return size


def _replace(name: FileName, tier: str, *, only_pinned: bool = False) -> Iterator[str]:
    """Merge a file into that of another tier; yield a sentence where it is damaged."""
    try:
        target = name._replace(tier=tier)
        temporary = target.path + _TEMPORARY
        with ExitStack() as stack:
            source = _open(name, stack, write=name.tier == "1m")
            if name.tier == "1m":
                stack.enter_context(source.writing())  # a writer that waits sees that it is gone
            has_old = target != name and os.path.exists(target.path)
            old = [_open(target, stack)] if has_old else []
            if any(source.texts("identity") <= each.texts("replaced") for each in old):
                pass  # a process was killed before the last step
            elif _write(temporary, [source, *old], _changes(name), tier, only_pinned=only_pinned):
                os.rename(temporary, target.path)
            else:
                remove(target)
            if target != name:
                remove(name)
    except (BadInput, PermissionError) as failure:
        yield f"{name.path}: {getattr(failure, 'strerror', None) or failure}"


def _open(name: FileName, stack: ExitStack, *, write: bool = False) -> HistoryFile:
    file = HistoryFile(name.path, write=write)
    stack.callback(file.close)
    return file


def _write(
    path: str, sources: list[HistoryFile], changes: dict[object, list[float]], tier: str, *, only_pinned: bool
) -> bool:
    """Write a file with the slices of others, merged; return whether there were any."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    replaced = {text for source in sources for text in source.texts("replaced")}
    target, is_empty = HistoryFile(path, write=True), True
    try:
        with target.writing():
            for source in sources:
                for group in _groups(source.facts(), changes, tier):
                    if only_pinned and not group[0].pinned:
                        continue
                    is_empty = False
                    alone = group[0] if len(group) == 1 and group[0].pinned else merged_facts(group, tier)
                    target.insert(alone, source.report(group))
                gaps = source.gaps()
                is_empty = is_empty and (only_pinned or not gaps)
                target.insert_gaps(gaps)
            target.insert_replaced({*sources[0].texts("identity"), *replaced})
    finally:
        target.close()
    if is_empty:
        os.unlink(path)
    return not is_empty


def _groups(
    found: Iterable[SliceFacts], changes: dict[object, list[float]], tier: str
) -> list[list[SliceFacts]]:
    """Return the slices that become one, in groups."""
    groups: dict[object, list[SliceFacts]] = {}
    for facts in sorted(found, key=lambda facts: facts.begin_s):
        near = any(facts.begin_s - _PINNED_S <= at <= facts.end_s + _PINNED_S
                   for at in changes.get(_origin(facts), ()))  # fmt: skip
        each = facts._replace(pinned=facts.pinned or near)
        groups.setdefault(merge_key(each, tier), []).append(each)
    return [*groups.values()]


def _changes(name: FileName) -> dict[object, list[float]]:
    """Return when the build-id of each service has changed, about the day of a file."""
    builds: dict[object, list[tuple[float, str]]] = {}
    for near in file_names(name.directory):
        if abs(near.day - name.day) <= 1:
            with suppress(BadInput, FileNotFoundError), ExitStack() as stack:
                for facts in _open(near, stack).facts():
                    if facts.build_id:
                        builds.setdefault(_origin(facts), []).append((facts.begin_s, facts.build_id))
    return {
        origin: [at for (_, before), (at, build) in pairwise(sorted(found)) if build != before]
        for origin, found in builds.items()
    }


def _origin(facts: SliceFacts) -> object:
    """Return whose build-id it is."""
    return facts.service, tuple(sorted(facts.labels.items()))
