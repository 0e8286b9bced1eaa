"""Merges Python frames into native ones, as the user wants to see them.

A Python program is read in Python.  So the frames of the evaluation loop, and other frames of the interpreter
between Python frames, are folded away; what Python code has called (the innermost frames) stays.
"""

from sfsample.core.python_view import PythonView
from sfsample.modules.location import Location, python_location
from sfsample.python.names import PythonStack


def with_python(
    locations: tuple[Location, ...], stack: PythonStack, view: PythonView
) -> tuple[Location, ...]:
    """Return the places of a stack with its Python frames; `locations` has one for each native frame."""
    if not stack.activations or view is PythonView.OFF:
        return locations
    runs = dict(stack.activations)
    interpreter = {locations[index].module for index in runs}
    innermost = min(runs)
    merged: list[Location] = []
    for index, location in enumerate(locations):
        run = runs.get(index)
        is_own = index > innermost and location.module in interpreter
        if run is not None:
            merged += map(python_location, run)
        if view is PythonView.ALL or (view is PythonView.AUTO and not is_own and not run):
            merged.append(location)
    return tuple(merged)
