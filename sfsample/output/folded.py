"""Folded stacks: one line per distinct stack, root first, `process;frame;...;frame count`.

Law: sorted, UTF-8, nothing else in the text; names come cleaned from the namer, process and thread names are
cleaned here by the function that is handed in.
"""

from collections import Counter
from collections.abc import Callable, Iterator

from sfsample.model import StopReason
from sfsample.profile import Location, Profile

Namer = Callable[[Location], str]
Cleaner = Callable[[str], str]


def folded_lines(profile: Profile, name: Namer, clean: Cleaner, *, threads: bool = False) -> Iterator[str]:
    """Yield the lines, without newlines.  `threads`: the first frame is `name/TID`."""
    merged: Counter[str] = Counter()
    for key, count in profile.counts.items():
        if threads:
            root = f"{clean(profile.threads[key.pid, key.tid])}/{key.tid}"
        else:
            root = clean(profile.processes[key.pid])
        frames = [root, *(name(place) for place in reversed(key.locations))]
        if key.stop_reason is not StopReason.OUTERMOST:
            frames.insert(1, f"[truncated: {key.stop_reason}]")
        merged[";".join(frames)] += count
    for stack in sorted(merged):
        yield f"{stack} {merged[stack]}"
