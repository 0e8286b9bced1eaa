"""Names the functions of a thread's stack, and groups equal threads.

A dump
shows a group of threads once: they have the same addresses on their stacks, the same state and the same
system call.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from sfsample.core.printable import columns, fit
from sfsample.core.stack import Frame
from sfsample.dumping.model import ProcessDump, ThreadDump
from sfsample.modules.location import Location, locate
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import NamedFrame, python_frame
from sfsample.waiting.c_library import C_LIBRARIES, is_file, library_functions
from sfsample.waiting.thread import WaitingThread

Namer = Callable[[Location], tuple[NamedFrame, ...]]
_LANGUAGE_LIBRARIES = ("libstdc++.", "libgcc_s.", "libc++.")
# Python's own files
_LIBRARY = re.compile(r"^<frozen |/lib(64)?/python3(\.\d+t?/(?!(site|dist)-packages/)|\d+\.zip)")
_START_FUNCTIONS = ("_start", "__libc_start_main")
_MAX_PATH_FUNCTIONS = 3
_MAX_NAME_LENGTH = 60


class NamedThread(NamedTuple):
    """A thread with names; `frames` has the functions of each frame of its stack, innermost inlined first."""

    pid: int
    dump: ThreadDump
    frames: tuple[tuple[NamedFrame, ...], ...]

    @property
    def tid(self) -> int:
        """The thread id in sfsample's pid namespace."""
        return self.dump.tid

    @property
    def python(self) -> tuple[NamedFrame, ...]:
        """The Python frames, innermost first; empty if the thread runs no Python."""
        runs = self.dump.python.activations if self.dump.python else ()
        return tuple(python_frame(place) for _, run in runs for place in run)

    def locals_of(self, depth: int) -> tuple[tuple[str, str], ...]:
        """Return the names and short texts of the locals of a Python frame; none if they were not read."""
        return self.dump.facts.locals[depth] if depth < len(self.dump.facts.locals) else ()

    def rows(self, depth: int | None = None) -> Iterator[tuple[Frame, Module | None, tuple[NamedFrame, ...]]]:
        """Yield the innermost `depth` frames (None: all frames) with module and names, innermost first."""
        if self.dump.stack is not None:
            yield from islice(zip(self.dump.stack.frames, self.dump.modules, self.frames, strict=True), depth)

    @property
    def waiting(self) -> WaitingThread:
        """The evidence of its wait."""
        dump, paths = self.dump, self._paths()
        return WaitingThread(
            dump.tid, dump.name, dump.state, dump.ns_tid or dump.tid, dump.call, dump.wchan, dump.memory,
            dump.gil, dump.facts, tuple(library_functions(self.frames, paths)),
            is_file(next(iter(paths), ""), C_LIBRARIES), dump.idle_s, dump.asleep,
        )  # fmt: skip

    def call_path(self, depth: int = 0) -> str:
        """Return the innermost functions of the program: "pop <- worker <- main".

        If the thread runs Python, these are Python functions, and one is outside the standard library.
        `depth`: number of the innermost functions that are left out, Python functions if there are any.
        """
        if python := self.python[depth:]:
            names = [str(frame.function) for frame in python]
            at = _own(python)
            shown = names[:_MAX_PATH_FUNCTIONS]
            if at >= _MAX_PATH_FUNCTIONS:
                shown[2:] = ["...", names[at]]
            return " <- ".join(shown)
        pairs = list(zip(self.frames, self._paths(), strict=True))[depth:]
        own = [name.function for names, path in pairs
               if not is_file(path, C_LIBRARIES + _LANGUAGE_LIBRARIES)
               for name in names if name.function and name.raw not in _START_FUNCTIONS]  # fmt: skip
        return " <- ".join(short_name(function) for function in own[:_MAX_PATH_FUNCTIONS])

    @property
    def own_function(self) -> str:
        """The innermost Python function outside the standard library; "": the thread runs no Python."""
        return str(self.python[_own(self.python)].function) if self.python else ""

    def runs_python(self, file: str, function: str) -> bool:
        """Return True if a function of Python's library is on the stack."""
        return any(f.function == function and (f.file or "").endswith(f"/{file}") for f in self.python)

    def _paths(self) -> list[str]:
        return [module.path if module else "" for module in self.dump.modules]


def _own(python: Sequence[NamedFrame]) -> int:
    """Return the index of the first frame outside the standard library; 0: there is none."""
    return next((at for at, frame in enumerate(python) if not _LIBRARY.search(frame.file or "")), 0)


def name_threads(dump: ProcessDump, namer: Namer) -> tuple[NamedThread, ...]:
    """Name every frame of every thread."""
    named = []
    for thread in dump.threads:
        pairs = zip(thread.stack.frames if thread.stack else (), thread.modules, strict=True)
        names = tuple(namer(locate(frame, module, dump.pid)) for frame, module in pairs)
        named.append(NamedThread(dump.pid, thread, names))
    return tuple(named)


Group = list[NamedThread]  # threads with the same stack, by ascending tid; the first one stands for all


def group_threads(threads: Iterable[NamedThread]) -> list[Group]:
    """Return the groups, in the order of their first threads."""
    groups: dict[object, Group] = {}
    for thread in threads:
        groups.setdefault(_key(thread), []).append(thread)
    return list(groups.values())


def _key(thread: NamedThread) -> object:
    dump = thread.dump
    if dump.stack is None:
        return dump.tid
    pcs = tuple(frame.pc for frame in dump.stack.frames)
    call = dump.call.name if dump.call else None
    facts = dump.facts
    python = (dump.python.activations, dump.python.is_whole, facts.locals, facts.tasks) if dump.python else ()
    return (dump.state, dump.capture, call, pcs, dump.stack.stop_reason, python)


def short_name(function: str) -> str:
    """Return a function's name without parameters and template arguments, cut if it is still too long."""
    name = _drop_brackets(_drop_brackets(function, "<", ">"), "(", ")")
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 3]}..."


def fold_name(function: str, room: int | None) -> str:
    """Return a function's name in at most `room` columns: empty its brackets first, then cut it."""
    if room is None or columns(function) <= room:
        return function
    folded = _drop_brackets(function, "<", ">", "...")
    if columns(folded) > room:
        folded = _drop_brackets(folded, "(", ")", "...")
    return fit(folded, max(room, 8), "...")


def _drop_brackets(text: str, opening: str, closing: str, filler: str | None = None) -> str:
    """Drop brackets and contents, or put `filler` for the contents; names with `operator` stay."""
    if opening not in text or "operator" in text or text.startswith(opening):
        return text
    kept, depth = [], 0
    for letter in text:
        if letter == opening:
            depth += 1
            if depth == 1 and filler is not None:
                kept.append(f"{opening}{filler}{closing}")
        elif letter == closing and depth:
            depth -= 1
        elif not depth:
            kept.append(letter)
    return "".join(kept)
