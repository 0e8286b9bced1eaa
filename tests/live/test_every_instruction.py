"""At every instruction of a program, each unwinder returns the true stack.

A program is stepped through prologues, epilogues, PLT stubs, tail calls, signals, longjmp, coroutines, the
start of a thread, and the loader; `stepping` records the true stack.  At each instruction the test compares
the whole stack (pc and sp of all frames, and the end), with and without SFrame, with and without a copy of
the bytes below sp.  It also asks alone each stepper that has a row for the pc which is not a guess.

EXCEPTIONS lists all known differences, with the reason.  One that no longer occurs fails the test.
"""

import os
import subprocess
from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.process.image_cache import ImageCache
from sfsample.process.image_opener import ImageOpener
from sfsample.process.procfs import ProcFs
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, START, Unwinder
from tests.live.shadow import caller_by
from tests.live.stepping import Entry, State, Stepped, stepped
from tests.live.targets import EACH_GENERATION, fixture

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
]

SP, FP, PC = AMD64.sp, AMD64.fp, AMD64.pc
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)


class Case(NamedTuple):
    """A thread before an instruction."""

    frame: Frame
    module: Module | None
    snapshot: ThreadSnapshot
    truth: list[tuple[int, int]]  # pc and sp of all frames, innermost first


class Wrong(NamedTuple):
    """A wrong stack (`stepper` is None), or a wrong step of one stepper."""

    case: Case
    stepper: Found | None
    row: UnwindRow | None  # of the stepper, or of the first stepper that has one for the pc
    seen: object


def is_jumping(wrong: Wrong) -> bool:
    return wrong.row is not None and wrong.row.cfa.base not in (SP, FP)


def is_end_of_coroutine(wrong: Wrong) -> bool:
    known = START.row_at(wrong.case.frame, wrong.case.module, AMD64)
    return wrong.stepper is Found.EH_FRAME and known is not None


EXCEPTIONS: dict[str, Callable[[Wrong], bool]] = {
    # the tables of glibc's longjmp, setcontext and swapcontext give the jump's target as the caller, as soon
    # as a register points to the buffer in which it is saved
    "jumping": is_jumping,
    # glibc's table gives __start_context a caller, but it has none
    "start_context": is_end_of_coroutine,
}

SCENARIOS: dict[str, set[str]] = {
    "frames": set(),
    "tail": set(),
    "lazy": set(),
    "signal": set(),
    "alternate": set(),
    "nested": set(),
    "raised": set(),
    "null": set(),
    "longjmp": {"jumping"},
    "contexts": {"jumping", "start_context"},
    "threads": set(),
}


class Judge:
    """Compares the stacks and steps of each unwinder with the true stack."""

    def __init__(self, process: Stepped) -> None:
        self._process = process
        self._proc = ProcFs(process.pid)
        self.modules = ModuleMap(self._proc.maps, ImageOpener(self._proc, ImageCache(), None))
        self.unwinders = (Unwinder(self.modules), Unwinder(self.modules, NO_SFRAME))
        self.counts: Counter[str] = Counter()
        self.wrong: list[Wrong] = []

    def __call__(self, state: State) -> None:
        self.modules.allow_refresh()
        if state.callers is None or not self._process.is_true(state.callers):
            self.counts["unknown"] += 1
            return
        self.counts["instructions"] += 1
        frame = Frame(state.registers[PC], state.registers[SP], None, Found.CONTEXT, exact=True)
        truth = [(frame.pc, frame.sp), *((entry.pc, entry.sp) for entry in state.callers)]
        case = Case(frame, self.modules.find(frame.pc), self._process.snapshot(state), truth)
        rows = {s.found: s.row_at(frame, case.module, AMD64) for s in DEFAULT_STEPPERS}
        known = {found: row for found, row in rows.items() if row is not None and not row.guess}
        copies = case.snapshot, self._process.snapshot(state, below=0)
        for unwinder, copy in product(self.unwinders, copies):
            stack = unwinder.walk(copy)
            seen = [(f.pc, f.sp) for f in stack.frames]
            if seen != truth or stack.stop_reason is not StopReason.OUTERMOST:
                first = next(iter(known.values()), None)
                self.wrong.append(Wrong(case, None, first, (stack.stop_reason, seen)))
        for found, row in known.items():
            self.counts[found] += 1
            seen = caller_by(row, case.snapshot)
            if seen != (truth[1] if truth[1:] else None):
                self.wrong.append(Wrong(case, found, row, seen))

    def check(self, expected: set[str]) -> None:
        """Assert that only the expected exceptions occurred, and each of them."""
        explained = {explain(wrong) for wrong in self.wrong}
        assert None not in explained, "\n".join(show(w) for w in self.wrong if explain(w) is None)[:5000]
        assert explained == expected
        self._proc.close()


def explain(wrong: Wrong) -> str | None:
    return next((name for name, applies in EXCEPTIONS.items() if applies(wrong)), None)


def show(wrong: Wrong) -> str:
    frame, module = wrong.case.frame, wrong.case.module
    place = f"{module.path}+{module.vaddr(frame.pc):#x}" if module else f"{frame.pc:#x}"
    return f"{wrong.stepper or 'stack'} at {place}: {wrong.seen}, not {wrong.case.truth}"


def judged(process: Stepped, judge: Judge, tid: int, stride: int = 1) -> None:
    """Step a thread to its end, and each thread that it starts before it continues.

    Each instruction of the program is judged, and every `stride`-th of the libraries.
    """
    for number, state in enumerate(process.steps(tid)):
        mapping = process.mappings.at(state.registers[PC])
        if number % stride == 0 or (mapping and mapping.path.endswith("/steps")):
            judge(state)
        while process.threads:
            judged(process, judge, process.threads.pop())


def begin(process: Stepped, judge: Judge) -> None:
    """Continue to the start of the scenario; the callers of it, main and libc, are found by unwinding."""
    process.run_to_trap()
    judge.modules.refresh()
    here = State(process.pid, process.registers(process.pid), (), b"")
    above = judge.unwinders[1].walk(process.snapshot(here))
    assert above.stop_reason is StopReason.OUTERMOST
    assert len(above.frames) >= 3  # main, libc, _start
    process.begin(process.pid, [Entry(f.sp - 8, f.pc, f.sp) for f in reversed(above.frames[1:])])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("generation", EACH_GENERATION)
def test_every_instruction(generation, scenario):
    with stepped(fixture(generation, "steps"), scenario) as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid)
    judge.check(SCENARIOS[scenario])
    assert judge.counts["instructions"] >= 20
    assert judge.counts["unknown"] <= 70
    assert judge.counts[Found.SFRAME] >= 16


@pytest.mark.parametrize("generation", EACH_GENERATION)
def test_plt_stubs_for_indirect_branch_tracking(generation):
    with stepped(fixture(generation, "steps-ibt"), "lazy") as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid)
    judge.check(set())
    assert judge.counts[Found.SFRAME] >= (30 if generation == "v1" else 40)  # V1: not in stubs


@pytest.mark.extended
def test_start_of_a_program():
    """110,000 instructions, from the loader's first to main.

    gcc's crtbegin.o and crti.o have no tables: sfsample follows their instructions.
    """
    with stepped(fixture("v3", "steps"), "tail") as process:
        judge = Judge(process)
        judged(process, judge, process.pid, stride=29)
    judge.check(set())
    assert judge.counts["instructions"] > 3000


def test_each_scenario_of_the_program_is_tested():
    printed = subprocess.run(
        [fixture("v3", "steps"), "list"], check=True, capture_output=True, text=True
    ).stdout
    assert set(printed.split()) == set(SCENARIOS)
