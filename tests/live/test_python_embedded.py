"""A program that links CPython statically has Python frames, even if it has no symbol."""

import subprocess
from pathlib import Path

import pytest

from sfsample.api import named
from sfsample.core.python_view import PythonView
from sfsample.process.process import LiveProcess
from sfsample.runtimes.cpython.find import NotStarted, find_interpreter
from tests.live.compiled import needs_gcc, started
from tests.live.pythons import PYTHONS
from tests.live.targets import assert_untraced
from tests.live.test_python_frames import Remote, recorded

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_gcc]

HOST = r"""
#include <Python.h>
int main(void)
{
    puts("ready"); fflush(stdout);
    if (getchar() == EOF) return 1;
    Py_Initialize();
    puts("started"); fflush(stdout);
    return PyRun_SimpleString("def busy():\n    while True: sum(range(1000))\nbusy()\n");
}
"""
_FLAGS = (
    "import sysconfig as s; g = s.get_config_var; print(s.get_path('include')); "
    "print(g('LIBPL') + '/' + g('LIBRARY')); print(g('MODLIBS'), g('LIBS'), g('SYSLIBS'))"
)


def static_library(python: Path) -> tuple[str, str, list[str]]:
    """Return the directory of headers, the static library, and the flags of the libraries that it needs."""
    include, library, flags = subprocess.check_output([python, "-c", _FLAGS], text=True).splitlines()
    return include, library, flags.split()


STATIC = [python for python in PYTHONS if Path(static_library(python)[1]).exists()]


@pytest.mark.parametrize("symbols", [("-rdynamic",), (), ("-s",)], ids=["exported", "local", "stripped"])
@pytest.mark.parametrize("python", STATIC, ids=str)
def test_program_with_a_static_interpreter(python, symbols, tmp_path):
    include, library, flags = static_library(python)
    source, program = tmp_path / "host.c", tmp_path / "host"
    source.write_text(HOST)
    subprocess.run(
        ["gcc", "-no-pie", f"-I{include}", source, library, "-o", program, *flags, *symbols], check=True
    )
    with started(program, stdin=subprocess.PIPE) as target:
        process = LiveProcess(target.pid, attach=False)
        memory = Remote(target.pid)
        if symbols == ("-s",) and python.name in ("python3.11", "python3.12"):
            with pytest.raises(NotStarted):
                find_interpreter(process.modules, memory.read)
        assert target.stdin is not None
        assert target.stdout is not None
        target.stdin.write(b"\n")
        target.stdin.flush()
        assert target.stdout.readline() == b"started\n"
        process.close()
        report = named(recorded(target.pid, 20, python=PythonView.ONLY))
        assert "busy" in {frame.function for frame in report.frames}
        assert_untraced(target.pid)
