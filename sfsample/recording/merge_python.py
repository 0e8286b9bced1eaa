"""Merges Python frames into native frames, as the user wants to see them.

The user of a Python program thinks in Python functions.  So native frames of the interpreter between Python
frames are left out.  The native frames inside the innermost Python frame stay: Python code has called them.
"""

from sfsample.core.python_view import PythonView
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import Location, python_location
from sfsample.runtimes.cpython.python_stack import PythonStack


def with_python(
    locations: tuple[Location, ...], stack: PythonStack, view: PythonView
) -> tuple[Location, ...]:
    """Return the locations of a stack with its Python frames; `locations` are those of its native frames."""
    if not stack.activations or view is PythonView.OFF:
        return locations
    runs = dict(stack.activations)
    interpreter = {locations[index].module for index in runs}
    innermost = min(runs)
    merged: list[Location] = []
    for index, location in enumerate(locations):
        run = runs.get(index)
        is_hidden = index > innermost and location.module in interpreter
        if run is not None:
            merged += map(python_location, run)
        if view is PythonView.ALL or (view is PythonView.AUTO and not is_hidden and not run):
            merged.append(location)
    return tuple(merged)


def as_shown(stack: Stack, python: PythonStack, view: PythonView) -> Stack:
    """Return a stack with the stop reason of the frames that are shown."""
    is_whole = stack.stop_reason is StopReason.OUTERMOST
    if is_whole and not python.is_whole:
        return stack._replace(stop_reason=StopReason.PYTHON)
    if not is_whole and python.is_whole and python.activations and view is PythonView.ONLY:
        # The native frames outside the outermost Python frame were lost.  That happens when greenlets switch.
        return stack._replace(stop_reason=StopReason.OUTERMOST, stopped_at=None)
    return stack
