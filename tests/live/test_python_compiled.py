"""Functions that a compiler of Python made into C, and that link frames as Nuitka does, are named.

Nuitka itself would have to be downloaded.  This program makes its frames in the same way: the frame of a
frame object, with the owner of a generator's frame, becomes the current frame of the thread.

Source: Nuitka, nuitka/build/include/nuitka/compiled_frame.h, pushFrameStackInterpreterFrame.
"""

import subprocess
from pathlib import Path

import pytest

from sfsample.api import named
from sfsample.core.python_view import PythonView
from tests.live.compiled import needs_gcc, started
from tests.live.pythons import PYTHONS
from tests.live.targets import assert_untraced
from tests.live.test_python_embedded import static_library
from tests.live.test_python_frames import recorded

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_gcc]

PROGRAM = r"""
#define Py_BUILD_CORE
#include <Python.h>
#include <frameobject.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX < 0x030d0000
#define CURRENT(state) (state)->cframe->current_frame
#else
#define CURRENT(state) (state)->current_frame
#endif
static PyObject *globals;
static void push(const char *function, int line)
{
    PyThreadState *state = PyThreadState_Get();
    PyCodeObject *code = PyCode_NewEmpty("/srv/shop.py", function, line);
    struct _PyInterpreterFrame *frame = PyFrame_New(state, code, globals, NULL)->f_frame;
    frame->owner = FRAME_OWNED_BY_GENERATOR;
    frame->previous = CURRENT(state);
    CURRENT(state) = frame;
}
__attribute__((noinline)) static void impl_inner(void)
{
    push("inner", 7);
    puts("ready"); fflush(stdout);
#ifdef CALL
    PyRun_String("def busy():\n    while True: pass\nbusy()\n", Py_file_input, globals, globals);
#endif
    for (volatile long turn = 0;; turn++) ;
}
__attribute__((noinline)) static void impl_outer(void)
{
    push("outer", 3);
    impl_inner();
    puts("end");
}
int main(void)
{
    Py_Initialize();
    globals = PyModule_GetDict(PyImport_AddModule("__main__"));
    impl_outer();
    return 0;
}
"""

_SHARED = "import sysconfig as s; g = s.get_config_var; print(g('LIBDIR') + '/' + g('LDLIBRARY'))"


def libraries(python: Path) -> list[Path]:
    """Return the libraries with which a program can embed an interpreter: the static one, the shared one."""
    shared = subprocess.check_output([python, "-c", _SHARED], text=True).strip()
    return [path for path in (Path(static_library(python)[1]), Path(shared)) if path.exists()]


EMBEDDED = [
    pytest.param(python, library, id=f"{python.name}-{library.suffix[1:]}")
    for python in PYTHONS
    if (Path(static_library(python)[0]) / "internal").is_dir()
    for library in dict.fromkeys(libraries(python))
]


@pytest.mark.parametrize(
    ("flag", "inside"), [("-DSPIN", []), ("-DCALL", ["busy", "<module>"])], ids=["alone", "calls Python"]
)
@pytest.mark.parametrize(("python", "library"), EMBEDDED)
def test_compiled_functions_are_named_between_native_frames(python, library, flag, inside, tmp_path):
    include, _, flags = static_library(python)
    source, program = tmp_path / "shop.c", tmp_path / "shop"
    source.write_text(PROGRAM)
    subprocess.run(
        ["gcc", "-O1", "-no-pie", flag, f"-I{include}", source, library, "-o", program, *flags, "-rdynamic",
         f"-Wl,-rpath,{library.parent}"], check=True
    )  # fmt: skip
    with started(program) as target:
        report = named(recorded(target.pid, 10, python=PythonView.ONLY))
        for stack in report.stacks:
            frames = [report.frames[at] for at in stack.frames]
            assert [frame.function for frame in frames if frame.kind == "p"] == [*inside, "inner", "outer"]
            assert stack.stop_reason == "outermost"
        assert_untraced(target.pid)
