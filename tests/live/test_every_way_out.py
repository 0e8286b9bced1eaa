"""Each unwinder returns the true stack at every instruction, while functions end in other ways than a return.

C++ exceptions and pthread_exit (the unwinder of the language runtime runs), clone(2) with a stack of its own,
longjmp and setcontext in signal handlers, calls to addresses without code.  The judge is that of
test_every_instruction.py.  The program is built from source with g++.  Each of its instructions is judged,
and every STRIDE-th of the libraries.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.live.stepping import stepped
from tests.live.targets import extended
from tests.live.test_every_instruction import Judge, Wrong, begin, explain, judged, show

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the program with"),
]
SOURCE = Path(__file__).parent / "sources" / "steps.cc"
STRIDE = 61
SHORT = ("clone", "handler-jumps", "handler-jumps-alternate", "handler-sets-context", "stray")
LONG = ("exceptions", "thread-exit")  # 100,000 instructions and more: 16 s and 40 s
BUILDS = {
    "O2": ("-O2",),
    "Os": ("-Os", "-fcf-protection=full", "-Wl,-z,lazy"),
    "O1": ("-O1", "-fno-omit-frame-pointer", "-fstack-clash-protection", "-mno-red-zone"),
}
CASES = [
    *((build, name) for build in BUILDS for name in SHORT),
    *(extended("O2", name) for name in LONG),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Callable[[str], Path]:
    @cache
    def program(build: str) -> Path:
        path = tmp_path_factory.mktemp("steps") / "steps"
        subprocess.run(["g++", *BUILDS[build], "-pthread", "-o", path, SOURCE], check=True)
        return path

    return program


def is_installing(wrong: Wrong) -> bool:
    """Whether libgcc has overwritten the registers that its own frame saved with those of the handler.

    The callers are lost then; the frames of libgcc itself are right.
    """
    module = wrong.case.module
    if wrong.stepper is not None or module is None or "/libgcc_s.so" not in module.path:
        return False
    low, high = (module.address(vaddr) for vaddr in module.image.executable[0])
    in_libgcc = sum(low <= pc < high for pc, _ in wrong.case.truth)
    return wrong.seen[1][:in_libgcc] == wrong.case.truth[:in_libgcc]


@pytest.mark.parametrize(("build", "scenario"), CASES)
def test_every_way_out(built, build, scenario):
    with stepped(built(build), scenario) as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid, stride=STRIDE)
    unexplained = [w for w in judge.wrong if explain(w) != "jumping" and not is_installing(w)]

    assert not unexplained, "\n".join(map(show, unexplained))[:5000]
    assert judge.counts["instructions"] >= 40


def test_each_scenario_of_the_program_is_tested(built):
    printed = subprocess.run([built("O2")], check=True, capture_output=True, text=True).stdout
    assert {*printed.split()} == {*SHORT, *LONG}
