"""Rows of functions of Go's runtime that change stacks."""

import lzma
from pathlib import Path

import pytest

from sfsample.core.arch import AMD64
from sfsample.core.memory import PiecewiseMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import GOROUTINE_HIGH, GOROUTINE_LOW, SCHEDULER_SP, ThreadSnapshot
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.steppers.go import GoStepper
from sfsample.unwind.unwinder import Unwinder
from tests.builders.go_tables import functions
from tests.builders.walks import (
    CODE,
    FP,
    LEAF,
    OUTERMOST,
    PC,
    RA_SLOT,
    SP,
    STACK,
    RowsByPc,
    module_map,
    pcs,
    snapshot,
    words,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "go"
RET = b"\xc3"
ENDS = {"1.19": b"\x48\x83\xc4\x18" + RET, "1.24": b"\x48\x83\xc4\x10\x5d" + RET}  # add, [pop,] ret
ENDS["1.27"] = ENDS["1.24"]


def go_module(version: str) -> Module:
    image = ElfImage(lzma.decompress((FIXTURES / f"busy-{version}.xz").read_bytes()), "busy")
    return Module(image, 0, "busy")


def frame(pc: int) -> Frame:
    return Frame(pc, 0, None, Found.CONTEXT, exact=True)


def cfa_at(module: Module, pc: int) -> Rule:
    return GoStepper().row_at(frame(pc), module, AMD64).cfa


@pytest.mark.parametrize("version", ENDS)
@pytest.mark.parametrize("name", ["runtime.nanotime1", "time.now"])
def test_the_end_of_a_function_that_asks_the_clock_has_its_frame_at_sp(version, name):
    """There, the frame pointer is the caller's already: a row with it would skip the caller."""
    module = go_module(version)
    function = next(f for f in functions(module.tables.go) if f.name == name)
    code = module.code(function.entry, function.end - function.entry)
    start = function.entry + code.index(ENDS[version])
    last = start + len(ENDS[version]) - 1
    size = ENDS[version][3]
    saved = 8 if version != "1.19" else 0  # rbp
    assert cfa_at(module, start) == Rule(AMD64.sp, size + saved + 8, deref=False)
    assert cfa_at(module, last) == Rule(AMD64.sp, 8, deref=False)
    before = GoStepper().row_at(frame(start - 16), module, AMD64)
    assert (before.cfa.base, before.switches) == (AMD64.fp, True)


LOWER, UPPER = STACK, STACK + 0x8000  # the stack of a goroutine, and the stack on which the vDSO runs
CLOCK = UnwindRow(Rule(FP, 16, deref=False), RA_SLOT, ((FP, Rule(CFA, -16, deref=True)),), switches=True)


@pytest.mark.parametrize(
    ("goroutine", "below", "pcs_found", "reason"),
    [
        # the caller's frame lies below, on the stack of the goroutine
        ((LOWER, LOWER + 0x1000), LOWER, [0, 0x10], StopReason.OUTERMOST),
        ((UPPER, UPPER + 0x1000), LOWER, [0], StopReason.BAD_PC),
        # sfsample may find the goroutine, and capture the thread again
        (None, LOWER, [0], StopReason.REGISTER_UNKNOWN),
        # the scheduler itself asks the clock, so there is no switch
        (None, UPPER, [0, 0x10], StopReason.OUTERMOST),
    ],
)
def test_a_frame_pointer_may_lead_to_the_stack_of_the_goroutine(goroutine, below, pcs_found, reason):
    memory = PiecewiseMemory(words(0, CODE + 0x10, base=below + 0x10), words(0, base=UPPER + 0x100))
    registers = {PC: CODE, SP: UPPER, FP: below + 0x10}
    if goroutine is not None:
        registers |= dict(zip((GOROUTINE_LOW, GOROUTINE_HIGH), goroutine, strict=True))
    taken = ThreadSnapshot(1, registers, memory, bounded=False, stop_ns=0, eintr=False)
    stepper = RowsByPc({CODE: CLOCK, CODE + 0x10: OUTERMOST})
    stack = Unwinder(module_map(), steppers=[stepper]).walk(taken)
    assert (pcs(stack), stack.stop_reason) == (pcs_found, reason)


def test_a_parked_goroutine_that_c_has_called_is_walked_on_its_own_stack_only():
    """The C frames between its Go frames are on the stack of a thread, which may do something else now."""
    callback = LEAF._replace(cfa=Rule(SCHEDULER_SP, 8, deref=False), switches=True)
    stepper = RowsByPc({CODE: LEAF._replace(on_goroutine=callback), CODE + 0x10: OUTERMOST})
    taken = snapshot(words(CODE + 0x10, 0), CODE)
    stack = Unwinder(module_map(), steppers=[stepper]).walk_parked(taken, exact=True)
    assert (pcs(stack), stack.stop_reason) == ([0, 0x10], StopReason.OUTERMOST)
