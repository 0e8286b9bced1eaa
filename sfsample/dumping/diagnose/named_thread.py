"""Names the functions of a thread's stack, and groups threads with equal stacks, states and calls."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import dropwhile, groupby, islice
from typing import NamedTuple

from sfsample.core.printable import columns, fit
from sfsample.core.python_view import PythonView
from sfsample.core.stack import Found, Frame
from sfsample.dumping.goroutines import Namer, name_stack
from sfsample.dumping.model import ProcessDump, ThreadDump
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import NamedFrame, python_frame
from sfsample.waiting.thread import (
    C_LIBRARIES,
    PYTHON_LIBRARIES,
    RUNTIME_LIBRARIES,
    WaitingThread,
    bare_symbol,
    is_file,
    library_functions,
)

FrameRow = tuple[Frame, Module | None, tuple[NamedFrame, ...]]  # frame, module, functions at the frame
# Python's own files
_LIBRARY = re.compile(r"^<frozen |/lib(64)?/python3(\.\d+t?/(?!(site|dist)-packages/)|\d+\.zip)")
_INSTALLED = re.compile(r"/(site|dist)-packages/|/bin/[^/]*$")  # packages, and scripts that start packages
GOEXIT = "runtime.goexit"
_START_FUNCTIONS = ("_start", "__libc_start_main", "__libc_start_call_main", "__libc_start_main_impl", GOEXIT)
# functions between abort() or assert() and the signal; a static program has these functions in its own file
_RAISE_PATH = ("abort", "GI_abort", "assert_fail", "assert_fail_base", "raise", "GI_raise", "gsignal", "kill",
               "tgkill", "pthread_kill", "pthread_kill_implementation", "pthread_kill_internal")  # fmt: skip
_MAX_PATH_FUNCTIONS = 3
_MAX_NAME_LENGTH = 60


class NamedThread(NamedTuple):
    """A thread with names; `frames` has the functions of each frame, the innermost inlined function first."""

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
        """Return names and texts of a Python frame's local variables; empty if sfsample did not read any."""
        return self.dump.facts.locals[depth] if depth < len(self.dump.facts.locals) else ()

    def rows(self, depth: int | None = None) -> Iterator[FrameRow]:
        """Yield the innermost `depth` frames (None: all frames) with module and names, innermost first."""
        if self.dump.stack is not None:
            yield from islice(zip(self.dump.stack.frames, self.dump.modules, self.frames, strict=True), depth)

    def rows_beside_python(self, view: PythonView, depth: int | None) -> Iterator[tuple[int, FrameRow]]:
        """Yield the native frames that are shown beside the Python frames, each with its number.

        Library frames are always shown.  Frames inside the innermost Python function are shown unless the
        thread waits in a system call that Python itself made.  Without Python frames, all frames are shown.
        """
        runs = self.dump.python.activations if self.dump.python else ()
        inner = min((index for index, run in runs if run), default=None)
        rows = [*enumerate(self.rows(depth))]
        if inner is None or view is PythonView.ALL:
            yield from rows
        elif view is PythonView.AUTO:
            interpreter = {self.dump.modules[index] for index, _ in runs}
            foreign = {index for index, (_, module, _) in rows
                       if module and module not in interpreter and "/lib-dynload/" not in module.path
                       and not is_file(module.path, PYTHON_LIBRARIES)}  # fmt: skip
            calls = inner if self.dump.call is None or any(index < inner for index in foreign) else 0
            yield from (row for row in rows if row[0] < calls or row[0] in foreign)

    @property
    def waiting(self) -> WaitingThread:
        """The evidence of the thread's wait."""
        dump, paths = self.dump, self._paths()
        return WaitingThread(
            dump.tid, dump.name, dump.state, dump.ns_tid or dump.tid, dump.call, dump.wchan, dump.memory,
            dump.gil, dump.facts, tuple(library_functions(self.frames, paths)),
            is_file(next(iter(paths), ""), C_LIBRARIES), dump.idle_s, dump.asleep,
        )  # fmt: skip

    def call_path(self, depth: int = 0) -> str:
        """Return the innermost functions of the program: "pop <- worker <- main".

        If the thread runs Python, the path has only Python functions, and the user's innermost has its place.
        `depth`: number of innermost functions to leave out.
        """
        if python := self.python[depth:]:
            return python_path(python)
        # `at`: index of the frame that a signal interrupted; frame `at - 1` only returns from the handler
        found = [frame.found for frame in self.dump.stack.frames] if self.dump.stack else []
        at = found.index(Found.SIGNAL_FRAME, depth) if Found.SIGNAL_FRAME in found[depth:] else len(found) + 1
        path, interrupted = self._path_of(slice(depth, at - 1)), self._path_of(slice(at, None))
        return f"{path}, a signal handler that interrupted {interrupted}" if path and interrupted else path

    def _path_of(self, part: slice) -> str:
        """Return the functions in a part of the frames, without functions of runtime libraries."""
        pairs = zip(self.frames[part], self._paths()[part], strict=True)
        names = [name for names, path in pairs if not is_file(path, RUNTIME_LIBRARIES)
                 for name in names if name.function and name.function not in _START_FUNCTIONS]  # fmt: skip
        if self.dump.signal:
            names = [*dropwhile(lambda name: bare_symbol(name.raw or "") in _RAISE_PATH, names)] or names
        return _path([short_name(str(name.function)) for name in names])

    def runs_python(self, file: str, function: str) -> bool:
        """Return True if this function of Python's library is on the stack."""
        return any(f.function == function and (f.file or "").endswith(f"/{file}") for f in self.python)

    def _paths(self) -> list[str]:
        return [module.path if module else "" for module in self.dump.modules]


def python_path(frames: Sequence[NamedFrame]) -> str:
    """Return Python functions, innermost first; the user's has its place: "read <- get (web/shop.py:7)"."""
    own = _own(frames)
    user = frames[own] if frames else NamedFrame("")
    place = user.text.removeprefix(f"{user.function} (").removesuffix(")") if user.file else ""
    return _path([str(frame.function) for frame in frames], own, place)


def own_function(frames: Sequence[NamedFrame]) -> str:
    """Return the user's innermost function with its place: "get (web/shop.py:7)"; "" without frames."""
    return python_path(frames[_own(frames) :][:1])


def _path(names: Sequence[str], own: int = 0, place: str = "") -> str:
    """Return "f (x 3) <- main": the innermost functions; the function at index `own` has its place."""
    calls = [[*indexes] for _, indexes in groupby(range(len(names)), key=names.__getitem__)]
    at = next((at for at, indexes in enumerate(calls) if own in indexes), 0)
    texts = []
    for indexes in calls:
        notes = [place] * bool(place and own in indexes) + [f"x {len(indexes)}"] * (len(indexes) > 1)
        texts.append(names[indexes[0]] + (f" ({', '.join(notes)})" if notes else ""))
    shown = texts[:_MAX_PATH_FUNCTIONS]
    if at >= _MAX_PATH_FUNCTIONS:
        shown[2:] = ["...", texts[at]]
    return " <- ".join(shown)


def _own(python: Sequence[NamedFrame]) -> int:
    """Return the index of the user's innermost frame: outside packages, else outside the library, else 0."""
    files = [frame.file or "" for frame in python]
    outside = [at for at, file in enumerate(files) if not _LIBRARY.search(file)]
    return next((at for at in outside if not _INSTALLED.search(files[at])), min(outside, default=0))


def name_threads(dump: ProcessDump, namer: Namer) -> tuple[NamedThread, ...]:
    """Name every frame of every thread."""
    return tuple(
        NamedThread(dump.pid, thread, name_stack(thread.stack, thread.modules, namer, dump.pid))
        for thread in dump.threads
    )


Group = list[NamedThread]  # threads with the same stack, by ascending tid; the first represents the group


def group_threads(threads: Iterable[NamedThread]) -> list[Group]:
    """Return the groups, in the order of their first threads."""
    groups: dict[object, Group] = {}
    for thread in threads:
        groups.setdefault(_key(thread), []).append(thread)
    return list(groups.values())


def _key(thread: NamedThread) -> object:
    dump, facts = thread.dump, thread.dump.facts
    if dump.stack is None:
        return dump.tid
    pcs = tuple(frame.pc for frame in dump.stack.frames)
    python = dump.python and (dump.python.activations, dump.python.is_whole, facts.locals, facts.tasks)
    return (dump.state, dump.capture, dump.call and dump.call.name, pcs, dump.stack.stop_reason, python)


def short_name(function: str) -> str:
    """Return a function's name without parameters and template arguments; a name that stays long is cut."""
    return fold_name(_drop_brackets(_drop_brackets(function, "<", ">"), "(", ")"), _MAX_NAME_LENGTH)


def fold_name(function: str, room: int | None) -> str:
    """Return a function's name in at most `room` columns: first empty the brackets, then cut the name."""
    if room is None or columns(function) <= room:
        return function
    folded = _drop_brackets(function, "<", ">", "...")
    if columns(folded) > room:
        folded = _drop_brackets(folded, "(", ")", "...")
    if columns(folded) > room and "operator" not in folded:
        folded = folded.rpartition("/")[2]  # without the directories of a Go package
    return fit(folded, max(room, 8), "...")


def _drop_brackets(text: str, opening: str, closing: str, filler: str | None = None) -> str:
    """Drop brackets, or fill them with `filler`; a text with `operator` or a Go receiver stays as it is."""
    if opening not in text or "operator" in text or ".(*" in text or text.startswith(opening):
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
