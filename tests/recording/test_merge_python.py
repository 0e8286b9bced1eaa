"""Python frames take the place of the evaluation loop; what is shown besides depends on the view."""

import pytest

from sfsample.core.python_view import PythonView
from sfsample.core.stack import Stack, StopReason
from sfsample.modules.location import GeneratedFunction, Location, PythonPlace
from sfsample.recording.merge_python import as_shown, with_python
from sfsample.runtimes.cpython.python_stack import PythonStack

PYTHON, LIBC = object(), object()
# innermost first: native code, the loop, a call inside the interpreter, the loop, the start of the program
NATIVE = tuple(
    Location(module, address, address)  # type: ignore[arg-type]
    for module, address in ((LIBC, 1), (PYTHON, 2), (PYTHON, 3), (PYTHON, 4), (PYTHON, 5), (LIBC, 6))
)
INNER = (PythonPlace("leaf", "a.py", 3, 1), PythonPlace("caller", "a.py", 9, 7))
OUTER = (PythonPlace("<module>", "a.py", 20, 1),)
STACK = PythonStack(((1, INNER), (3, OUTER)), is_whole=True)


def shown(stack, view):
    return [
        place.python.function if place.python else place.address for place in with_python(NATIVE, stack, view)
    ]


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (PythonView.AUTO, [1, "leaf", "caller", "<module>", 6]),
        (PythonView.ALL, [1, "leaf", "caller", 2, 3, "<module>", 4, 5, 6]),
        (PythonView.ONLY, ["leaf", "caller", "<module>"]),
        (PythonView.OFF, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_views(view, expected):
    assert shown(STACK, view) == expected


def test_loop_without_frames_stays_where_it_is_innermost():
    assert shown(PythonStack(((1, ()), (3, OUTER)), True), PythonView.AUTO) == [1, 2, "<module>", 6]


def test_stack_without_any_python_frame_yet_keeps_its_native_frames():
    assert shown(PythonStack(((1, ()),), True), PythonView.ONLY) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("view", list(PythonView))
def test_without_activations_the_native_frames_stay(view):
    assert shown(PythonStack((), False), view) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("reason", "is_whole", "view", "shown"),
    [
        ("outermost", True, PythonView.AUTO, "outermost"),
        ("outermost", False, PythonView.AUTO, "python"),
        ("bad_pc", False, PythonView.ONLY, "bad_pc"),
        ("bad_pc", True, PythonView.AUTO, "bad_pc"),
        ("bad_pc", True, PythonView.ONLY, "outermost"),  # lost behind what is shown
    ],
)
def test_stack_is_whole_where_what_is_shown_is(reason, is_whole, view, shown):
    stack = Stack((), StopReason(reason), "libgreenlet.so+0x1")
    assert as_shown(stack, STACK._replace(is_whole=is_whole), view).stop_reason == shown


# -- trampolines of the interpreter (-X perf, -X perf_jit)


def between_loops(*generated):
    """Return what is shown of generated code between two evaluation loops; each is inside the next one."""
    code = [Location(None, 7, 7, generated=GeneratedFunction(name, 0)) for name in generated]
    native = (*NATIVE[:2], *code, *NATIVE[2:])
    stack = PythonStack(((1, INNER), (3 + len(code), OUTER)), is_whole=True)
    return [
        place.python.function if place.python else place.generated.name if place.generated else place.address
        for place in with_python(native, stack, PythonView.AUTO)
    ]


@pytest.mark.parametrize("name", ["py::caller:a.py", ""])
def test_trampoline_is_the_interpreters(name):
    assert between_loops(name) == between_loops()


@pytest.mark.parametrize("names", [("numba_add",), ("", ""), ("", "numba_add")])
def test_other_generated_code_stays(names):
    assert between_loops(*names) == [1, "leaf", "caller", *names, "<module>", 6]


def test_nameless_code_called_by_other_code_stays():
    code = Location(None, 7, 7, generated=GeneratedFunction("", 0))
    assert code in with_python(
        (*NATIVE[:2], code, NATIVE[0]), PythonStack(((1, INNER),), True), PythonView.AUTO
    )
