"""Keeps incomplete stacks in a directory, one small file each.

Stacks with the same return addresses and stop reason have one file, and the number of files is limited.  Only
the user may read the files, because a stack may contain passwords.  If a file cannot be written, the
recording goes on, and its summary has a line about the problem.
"""

import os
from hashlib import sha256

from sfsample.core.filesystem import whole_file
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.errors import SfsampleError
from sfsample.modules.module_map import ModuleMap
from sfsample.saved_stacks.format import save, to_json

MAX_FILES = 100
_NOT_SAVED = (StopReason.OUTERMOST, StopReason.MAX_FRAMES)  # whole stacks; stacks as long as the user allows


class BadStackStore:
    """Writes incomplete stacks.  Raises SfsampleError if the directory cannot be made."""

    def __init__(self, directory: str) -> None:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as failure:
            raise SfsampleError(f"cannot write: {directory or repr('')}: {failure.strerror}",
                                "choose another --save-bad directory") from None  # fmt: skip
        self.directory = directory
        self._seen: set[str] = set()
        self.written = 0
        self.full = False  # True: a stack was dropped, because there are `MAX_FILES` already
        self.problems: list[str] = []

    def keep(self, process: str, snapshot: ThreadSnapshot, stack: Stack, modules: ModuleMap) -> None:
        """Write the stack if it is incomplete and not yet in the directory."""
        if stack.stop_reason in _NOT_SAVED:
            return
        key = _key(stack, modules)
        if key in self._seen:
            return
        if len(self._seen) >= MAX_FILES:
            self.full = True
            return
        self._seen.add(key)
        path = os.path.join(self.directory, f"{stack.stop_reason}-{key}.json")
        if os.path.lexists(path):
            return  # file of an earlier recording
        text = to_json(save(process, snapshot, stack, modules))
        try:
            with whole_file(path, 0o600) as file:
                file.write(text.encode("utf-8", "surrogateescape"))
        except OSError as failure:
            self.problems.append(f"cannot write: {path}: {failure.strerror}")
        else:
            self.written += 1


def _key(stack: Stack, modules: ModuleMap) -> str:
    """Return a hash of the stop reason and the return addresses, as vaddrs (of a single frame: its pc)."""
    places = []
    for frame in stack.frames[1:] or stack.frames:
        module = modules.find(frame.lookup_pc)
        places.append((module.path, module.vaddr(frame.pc)) if module else ("", frame.pc))
    return sha256(repr((stack.stop_reason, places)).encode()).hexdigest()[:16]
