"""Incomplete stacks in a directory, one small file each.

Law: a file for each distinct stack (its return addresses, and why it ends), a bounded number of them, for the
owner alone to read: a stack holds whatever the program had there, passwords too.  What cannot be written is
told and never ends a recording.
"""

import os
from hashlib import sha256

from sfsample.core.filesystem import whole_file
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.errors import SfsampleError
from sfsample.modules.module_map import ModuleMap
from sfsample.saved_stacks.format import save, to_json

MOST_FILES = 100
_COMPLETE = (StopReason.OUTERMOST, StopReason.MAX_FRAMES)  # a limit that the user has set tells nothing


class BadStacks:
    """Keeps incomplete stacks.  Raises SfsampleError when the directory cannot be made."""

    def __init__(self, directory: str) -> None:
        try:
            os.makedirs(directory, mode=0o700, exist_ok=True)
        except OSError as failure:
            raise SfsampleError(f"cannot write: {directory or repr('')}: {failure.strerror}",
                                "choose another --save-bad directory") from None  # fmt: skip
        self.directory = directory
        self._seen: set[str] = set()
        self.written = 0
        self.full = False  # there were more
        self.problems: list[str] = []

    def keep(self, process: str, snapshot: ThreadSnapshot, stack: Stack, index: ModuleMap) -> None:
        """Write a stack that is incomplete and new."""
        if stack.stop_reason in _COMPLETE:
            return
        key = _key(stack, index)
        if key in self._seen:
            return
        if len(self._seen) >= MOST_FILES:
            self.full = True
            return
        self._seen.add(key)
        text = to_json(save(process, snapshot, stack, index))
        self._write(f"{stack.stop_reason}-{key}.json", text)

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self.directory, name)
        if os.path.lexists(path):
            return  # of an earlier recording
        try:
            with whole_file(path, 0o600) as file:
                file.write(text.encode("utf-8", "surrogateescape"))
        except OSError as failure:
            self.problems.append(f"cannot write: {path}: {failure.strerror}")
        else:
            self.written += 1


def _key(stack: Stack, index: ModuleMap) -> str:
    """Return a word for the return addresses (of a single frame its pc), wherever the modules are mapped."""
    places = []
    for frame in stack.frames[1:] or stack.frames:
        module = index.find(frame.lookup_pc)
        places.append((module.path, module.vaddr(frame.pc)) if module else ("", frame.pc))
    return sha256(repr((stack.stop_reason, places)).encode()).hexdigest()[:16]
