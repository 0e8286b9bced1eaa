"""A thread with the names of its functions.

Law: names are asked for once and handed on; a function is recognised by its symbol, without the underscores
and versions that a C library puts around it.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sfsample.dumping.collect import ProcessDump, ThreadDump
from sfsample.modules.location import Location, locate
from sfsample.symbolize.named_frame import NamedFrame

Namer = Callable[[Location], tuple[NamedFrame, ...]]
_C_LIBRARIES = ("libc.so", "libc-2.", "libpthread", "ld-linux", "ld-musl", "libresolv", "librt", "[vdso]")
_LANGUAGE_LIBRARIES = ("libstdc++.", "libgcc_s.", "libc++.")
_STARTS = ("_start", "__libc_start_main")
_SHOWN = 3
_LONGEST = 60


class NamedThread(NamedTuple):
    """One thread; `frames` are the names of each frame of its stack, the most inlined one first."""

    pid: int
    dump: ThreadDump
    frames: tuple[tuple[NamedFrame, ...], ...]

    @property
    def tid(self) -> int:
        """Its id, as we see it."""
        return self.dump.tid

    def library_functions(self) -> Iterator[str]:
        """Yield the bare names of the C library's functions that it is in, innermost first.

        In a static program there is no telling whose a function is, so all are yielded.
        """
        static = not any(_is(path, _C_LIBRARIES) for path in self._paths())
        for names, path in zip(self.frames, self._paths(), strict=True):
            if static or _is(path, _C_LIBRARIES):
                yield from (bare(name.raw) for name in names if name.raw)

    def in_c_library(self) -> bool:
        """Whether its innermost frame is the C library's."""
        return _is(next(iter(self._paths()), ""), _C_LIBRARIES)

    def way(self, depth: int = 0) -> str:
        """Return the program's own functions on the way to frame `depth`: "pop <- worker <- main"."""
        pairs = list(zip(self.frames, self._paths(), strict=True))[depth:]
        own = [name.function for names, path in pairs if not _is(path, _C_LIBRARIES + _LANGUAGE_LIBRARIES)
               for name in names if name.function and name.raw not in _STARTS]  # fmt: skip
        return " <- ".join(short(function) for function in own[:_SHOWN])

    def _paths(self) -> list[str]:
        return [module.path if module else "" for module in self.dump.modules]


def name_threads(dump: ProcessDump, namer: Namer) -> tuple[NamedThread, ...]:
    """Name every frame of every thread."""
    return tuple(NamedThread(dump.pid, thread, _frames(dump.pid, thread, namer)) for thread in dump.threads)


def _frames(pid: int, thread: ThreadDump, namer: Namer) -> tuple[tuple[NamedFrame, ...], ...]:
    frames = thread.stack.frames if thread.stack else ()
    pairs = zip(frames, thread.modules, strict=True)
    return tuple(namer(locate(frame, module, pid)) for frame, module in pairs)


def bare(symbol: str) -> str:
    """Return "pthread_mutex_lock" for "___pthread_mutex_lock@@GLIBC_2.2.5"."""
    return symbol.partition("@")[0].lstrip("_")


def short(function: str) -> str:
    """Return a function's name without parameters and template arguments, and not too long."""
    name = _without(_without(function, "<", ">"), "(", ")")
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 3]}..."


def fold(function: str, room: int | None) -> str:
    """Fit a function's name into `room` letters: its brackets are emptied first, then it is cut."""
    if room is None or len(function) <= room:
        return function
    folded = _without(function, "<", ">", "...")
    if len(folded) > room:
        folded = _without(folded, "(", ")", "...")
    return folded if len(folded) <= room else f"{folded[: max(room, 8) - 3]}..."


def _without(text: str, opening: str, closing: str, instead: str | None = None) -> str:
    """Drop what stands in brackets, with them unless there is something to put `instead`.

    `operator<` and the like keep theirs.
    """
    if opening not in text or "operator" in text or text.startswith(opening):
        return text
    kept, depth = [], 0
    for letter in text:
        if letter == opening:
            depth += 1
            if depth == 1 and instead is not None:
                kept.append(f"{opening}{instead}{closing}")
        elif letter == closing and depth:
            depth -= 1
        elif not depth:
            kept.append(letter)
    return "".join(kept)


def _is(path: str, names: tuple[str, ...]) -> bool:
    return path.rpartition("/")[2].startswith(names)
