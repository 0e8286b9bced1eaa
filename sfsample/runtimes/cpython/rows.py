"""Recognizes functions of Python's library on a stack by file and name, and what it is inside a `with` of."""

from collections.abc import Iterator, Sequence

from sfsample.modules.location import PythonPlace
from sfsample.runtimes.cpython.chain import PythonFrame
from sfsample.runtimes.cpython.objects import Objects
from sfsample.runtimes.cpython.python_stack import PythonStack

Row = tuple[PythonPlace, PythonFrame]
_CONDITIONS = ("threading.py", "asyncio/locks.py")


def rows_of(stack: PythonStack) -> list[list[Row]]:
    """Return the named frames of each activation of a stack."""
    frames = iter(stack.frames)
    return [list(zip(places, frames, strict=False)) for _, places in stack.activations]


def is_in(place: PythonPlace, file: str, function: str) -> bool:
    """Return whether a place is in a function of the library."""
    return place.function == function and place.file.endswith(f"/{file}")


def frames_in(rows: Sequence[Row], file: str, function: str) -> Iterator[PythonFrame]:
    """Yield the frames of a function of the library, innermost first."""
    return (frame for place, frame in rows if is_in(place, file, function))


def entered(objects: Objects, rows: Sequence[Row], near: int, lock: int) -> frozenset[int]:
    """Return what a stack is inside a `with` of, without the locks that it has released there.

    A Condition releases its lock to wait.  The innermost `near` frames, which call `acquire` of `lock`, have
    released it before, or only begin an `async with`.
    """
    found = {one for at, (_, frame) in enumerate(rows) for one in objects.entered(frame)
             if at >= near or one != lock}  # fmt: skip
    waits = [frame for file in _CONDITIONS for frame in frames_in(rows, file, "Condition.wait")]
    released = {objects.attribute(objects.local(frame, "self"), "_lock") for frame in waits}
    return frozenset(found - released)
