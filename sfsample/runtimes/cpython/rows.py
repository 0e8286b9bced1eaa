"""Finds functions of Python's library on a stack, by file and name, and the objects of `with` statements."""

from collections.abc import Iterator, Sequence

from sfsample.modules.location import PythonPlace
from sfsample.runtimes.cpython.chain import PythonFrame
from sfsample.runtimes.cpython.objects import Objects
from sfsample.runtimes.cpython.python_stack import PythonStack

Row = tuple[PythonPlace, PythonFrame]  # frame with its name, and the same frame of the interpreter
_CONDITIONS = ("threading.py", "asyncio/locks.py")


def rows_of(stack: PythonStack) -> list[list[Row]]:
    """Return the named frames of each activation of a stack."""
    frames = iter(stack.frames)
    return [list(zip(places, frames, strict=False)) for _, places in stack.activations]


def is_in(place: PythonPlace, file: str, function: str) -> bool:
    """Return True if a place is in this function of the library."""
    return place.function == function and place.file.endswith(f"/{file}")


def frames_in(rows: Sequence[Row], file: str, function: str) -> Iterator[PythonFrame]:
    """Yield the frames of a function of the library, innermost first."""
    return (frame for place, frame in rows if is_in(place, file, function))


def entered(objects: Objects, rows: Sequence[Row], near: int, lock: int) -> frozenset[int]:
    """Return the objects of the `with` statements that a stack is inside, without the locks that it released.

    A Condition releases its lock to wait.  The innermost `near` frames call `acquire` of `lock`, so they do
    not hold it: they have released it before, or only begin an `async with`.
    """
    found = ((at, address) for at, (_, frame) in enumerate(rows) for address in objects.entered(frame))
    locks = ((at, objects.attribute(address, "_semlock") or address) for at, address in found)
    inside = {address for at, address in locks if at >= near or address != lock}
    waits = [frame for file in _CONDITIONS for frame in frames_in(rows, file, "Condition.wait")]
    released = {objects.attribute(objects.local(frame, "self"), "_lock") for frame in waits}
    return frozenset(inside - released)
