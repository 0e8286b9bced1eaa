"""At every instruction the stack is the true one: while functions are left in other ways than by returning.

C++ exceptions and pthread_exit (the unwinder of the language runtime at work), clone(2) with a
stack of one's own, jumps out of signal handlers, calls to where no code is.  As test_every_instruction.py,
whose judge this is; the program is built from source, so g++ is wanted.  Its own code is looked at at each
instruction, that of libraries at one of STRIDE.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.live.stepping import stepped
from tests.live.test_every_instruction import Judge, Wrong, begin, explain, judged, show

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to build the program with"),
]
SOURCE = Path(__file__).parent / "sources" / "steps.cc"
STRIDE = 61
SHORT = ("clone", "handler-jumps", "handler-jumps-alternate", "handler-sets-context", "stray")
LONG = ("exceptions", "thread-exit")  # 100,000 instructions and more
BUILDS = {
    "O2": ("-O2",),
    "Os": ("-Os", "-fcf-protection=full", "-Wl,-z,lazy"),
    "O1": ("-O1", "-fno-omit-frame-pointer", "-fstack-clash-protection", "-mno-red-zone"),
}
CASES = [*((build, name) for build in BUILDS for name in SHORT), *(("O2", name) for name in LONG)]


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Callable[[str], Path]:
    @cache
    def program(build: str) -> Path:
        path = tmp_path_factory.mktemp("steps") / "steps"
        subprocess.run(["g++", *BUILDS[build], "-pthread", "-o", path, SOURCE], check=True)
        return path

    return program


def is_installing(wrong: Wrong) -> bool:
    """Whether libgcc has written the handler's registers over those that its own frame had saved.

    Nobody can tell them any more; the frames of libgcc itself are right.
    """
    module = wrong.case.module
    if wrong.stepper is not None or module is None or "/libgcc_s.so" not in module.path:
        return False
    low, high = (module.address(vaddr) for vaddr in module.image.executable[0])
    own = sum(low <= pc < high for pc, _ in wrong.case.truth)
    return wrong.seen[1][:own] == wrong.case.truth[:own]


@pytest.mark.parametrize(("build", "scenario"), CASES)
def test_every_way_out(built, build, scenario):
    with stepped(built(build), scenario) as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid, stride=STRIDE)
    unexplained = [w for w in judge.wrong if explain(w) != "jumping" and not is_installing(w)]

    assert not unexplained, "\n".join(map(show, unexplained))[:5000]
    assert judge.counts["instructions"] >= 40


def test_the_scenarios_are_those_of_the_program(built):
    said = subprocess.run([built("O2")], check=True, capture_output=True, text=True).stdout
    assert {*said.split()} == {*SHORT, *LONG}
