"""At every instruction the stack is the true one.

A program is single-stepped through prologues, epilogues, PLT stubs, tail calls, signals, jumps out of
functions, coroutines, a thread's start, and the loader's start; `stepping` knows the truth.  At each
instruction the whole stack is compared (program counters and stack pointers of all frames, and that it is
whole), with SFrame first and without SFrame, with and without what is below sp; and every stepper that claims
the pc and does not guess is asked alone for the caller.

EXCEPTIONS lists all that differs, with the reason; one that no longer occurs fails the test.
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
from tests.live.targets import GENERATIONS, fixture

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the program is x86-64's"),
]

SP, FP, PC = AMD64.sp, AMD64.fp, AMD64.pc
NO_SFRAME = tuple(stepper for stepper in DEFAULT_STEPPERS if stepper.found is not Found.SFRAME)


class Case(NamedTuple):
    """A thread before an instruction.  `truth`: (pc, sp) of all frames."""

    frame: Frame
    module: Module | None
    snapshot: ThreadSnapshot
    truth: list[tuple[int, int]]


class Wrong(NamedTuple):
    """A whole stack (`stepper` None), or a single step of a stepper, that is not the truth.

    `row` is the stepper's, or that of the first who knows the pc.
    """

    case: Case
    stepper: Found | None
    row: UnwindRow | None
    seen: object


def is_jumping(wrong: Wrong) -> bool:
    return wrong.row is not None and wrong.row.cfa.base not in (SP, FP)


def is_end_of_coroutine(wrong: Wrong) -> bool:
    known = START.row_at(wrong.case.frame, wrong.case.module, AMD64)
    return wrong.stepper is Found.EH_FRAME and known is not None


EXCEPTIONS: dict[str, Callable[[Wrong], bool]] = {
    # glibc's longjmp, setcontext and swapcontext describe the place that they jump to as their caller, as
    # soon as a register points to where it is saved, which is on no stack
    "jumping": is_jumping,
    # glibc's table gives __start_context a caller; there is none
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
    """Compares what each way of walking says with the truth."""

    def __init__(self, process: Stepped) -> None:
        self._process = process
        self._proc = ProcFs(process.pid)
        self.index = ModuleMap(self._proc.maps, ImageOpener(self._proc, ImageCache()))
        self.unwinders = (Unwinder(self.index), Unwinder(self.index, NO_SFRAME))
        self.counts: Counter[str] = Counter()
        self.wrong: list[Wrong] = []

    def __call__(self, state: State) -> None:
        self.index.allow_refresh()
        if state.callers is None or not self._process.is_true(state.callers):
            self.counts["unsettled"] += 1
            return
        self.counts["instructions"] += 1
        frame = Frame(state.registers[PC], state.registers[SP], None, Found.CONTEXT, exact=True)
        truth = [(frame.pc, frame.sp), *((entry.pc, entry.sp) for entry in state.callers)]
        case = Case(frame, self.index.find(frame.pc), self._process.snapshot(state), truth)
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
        """Assert that all that was wrong is explained, and that each exception has occurred."""
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
    """Step a thread to its end, and each thread that it starts before it goes on.

    With a `stride`, all instructions of the program are looked at, and of its libraries' one of so many.
    """
    for number, state in enumerate(process.steps(tid)):
        mapping = process.mappings.at(state.registers[PC])
        if number % stride == 0 or (mapping and mapping.path.endswith("/steps")):
            judge(state)
        while process.threads:
            judged(process, judge, process.threads.pop())


def begin(process: Stepped, judge: Judge) -> None:
    """Go to where the scenario begins; what lies above it is libc's, and walked."""
    process.run_to_trap()
    judge.index.refresh()
    here = State(process.pid, process.registers(process.pid), (), b"")
    above = judge.unwinders[1].walk(process.snapshot(here))
    assert above.stop_reason is StopReason.OUTERMOST
    assert len(above.frames) >= 3  # main, libc, _start
    process.begin(process.pid, [Entry(f.sp - 8, f.pc, f.sp) for f in reversed(above.frames[1:])])


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_instruction(generation, scenario):
    with stepped(fixture(generation, "steps"), scenario) as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid)
    judge.check(SCENARIOS[scenario])
    assert judge.counts["instructions"] >= 20
    assert judge.counts["unsettled"] <= 70
    assert judge.counts[Found.SFRAME] >= 16


@pytest.mark.parametrize("generation", GENERATIONS)
def test_plt_stubs_for_indirect_branch_tracking(generation):
    with stepped(fixture(generation, "steps-ibt"), "lazy") as process:
        judge = Judge(process)
        begin(process, judge)
        judged(process, judge, process.pid)
    judge.check(set())
    assert judge.counts[Found.SFRAME] >= 40


def test_the_start_of_a_program():
    """From the loader's first instruction to main: 110,000 instructions; see `judged`.

    gcc's crtbegin.o and crti.o have no tables: their instructions are followed.
    """
    with stepped(fixture("v3", "steps"), "tail") as process:
        judge = Judge(process)
        judged(process, judge, process.pid, stride=29)
    judge.check(set())
    assert judge.counts["instructions"] > 3000


def test_the_scenarios_are_those_of_the_program():
    said = subprocess.run([fixture("v3", "steps"), "list"], check=True, capture_output=True, text=True).stdout
    assert set(said.split()) == set(SCENARIOS)
