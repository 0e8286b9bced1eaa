"""Merges the Python frames of a stack into the native frames.

The user of a Python program thinks in Python functions.  So native frames of the interpreter between Python
frames are left out.  Native frames inside the innermost Python frame stay, as Python code has called them.
"""

from collections.abc import Collection, Mapping, Sequence

from sfsample.core.python_view import PythonView
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location, PythonPlace, python_location
from sfsample.modules.module import Module
from sfsample.runtimes.cpython.python_stack import PythonStack

_TRAMPOLINE = "py::"


def with_python(
    locations: tuple[Location, ...], stack: PythonStack, view: PythonView
) -> tuple[Location, ...]:
    """Add the Python frames of a stack to `locations`, the locations of its native frames."""
    if not stack.activations or view is PythonView.OFF:
        return locations
    runs = dict(stack.activations)
    modules = {locations[index].module for index in runs}
    innermost = min(runs)
    merged: list[Location] = []
    for index, location in enumerate(locations):
        run = runs.get(index)
        is_interpreter = location.module in modules or _is_trampoline(index, locations, runs, modules)
        is_hidden = index > innermost and is_interpreter
        if run is not None:
            merged += map(python_location, run)
        if view is PythonView.ALL or (view is PythonView.AUTO and not is_hidden and not run):
            merged.append(location)
    return tuple(merged) or locations  # `merged` is empty if the only Python call has no frame yet


def _is_trampoline(
    index: int,
    locations: Sequence[Location],
    runs: Mapping[int, tuple[PythonPlace, ...]],
    interpreter: Collection[Module | None],
) -> bool:
    """Return True if a frame is code that the interpreter generates to call a Python function (`-X perf`).

    The perf map names the trampoline `py::FUNCTION:FILE`.  With `-X perf_jit` there is no map.  Then a frame
    is a trampoline if the interpreter calls the frame, and the frame calls the evaluation loop.

    Source: CPython 3.12 Python/perf_trampoline.c, 3.13 Python/perf_jit_trampoline.c.
    """
    generated = locations[index].generated
    if generated is None or generated.name:
        return generated is not None and generated.name.startswith(_TRAMPOLINE)
    outer = locations[index + 1 : index + 2]
    return bool(runs.get(index - 1)) and bool(outer) and outer[0].module in interpreter


def as_shown(stack: Stack, python: PythonStack, view: PythonView) -> Stack:
    """Return a stack whose stop reason says whether the shown frames are complete."""
    is_whole = stack.stop_reason is StopReason.OUTERMOST
    if is_whole and not python.is_whole:
        return stack._replace(stop_reason=StopReason.PYTHON)
    if not is_whole and python.is_whole and python.activations and view is PythonView.ONLY:
        # A switch of greenlets loses the native frames outside the outermost Python frame.
        return stack._replace(stop_reason=StopReason.OUTERMOST, stopped_at=None)
    return stack
