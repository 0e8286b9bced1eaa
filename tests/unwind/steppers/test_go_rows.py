"""Rows of Go code for AArch64, from programs that Go has built; tests/live/test_go.py walks by these rows."""

import lzma
from pathlib import Path

import pytest

from sfsample.core.arch import AARCH64
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import GOROUTINE_FP, GOROUTINE_PC, GOROUTINE_RA, GOROUTINE_SP
from sfsample.core.stack import Found, Frame
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.unwind.steppers.go import GoStepper

GO = Path(__file__).parents[2] / "fixtures/go/aarch64"
ARCH = AARCH64._replace(ra_mask=(1 << 39) - 1)  # the kernel states this mask for a program
X3, X30 = 3, 30
STORES_PC = bytes.fromhex("9e2300f9")  # str x30, [x28, #64]


@pytest.fixture(scope="module", params=["1.19", "1.27"])
def program(request):
    return Module(
        ElfImage(lzma.decompress((GO / f"busy-{request.param}.xz").read_bytes()), "busy"), 0, "busy"
    )


def functions(program):
    table, at = program.tables.go, program.tables.go.module.first_pc
    while at < table.module.end_pc:
        yield (function := table.function_at(at))
        at = function.end


def named(program, name):
    return next(function for function in functions(program) if function.name == name)


def row_at(program, pc, *, exact=True):
    return GoStepper().row_at(Frame(pc, 0, None, Found.CONTEXT, exact=exact), program, ARCH)


def after_call(program, name, callee):
    """Return the return address of the only call of a function in another one."""
    function, table = named(program, name), program.tables.go
    targets = {pc: program.call_target(pc) for pc in range(function.entry + 4, function.end, 4)}
    [pc] = [pc for pc, target in targets.items() if target and table.function_at(target).name == callee]
    return pc


def value(register):
    return Rule(register, 0, deref=False)


def test_the_return_address_is_in_x30_at_each_entry(program):
    rows = [row_at(program, function.entry) for function in functions(program)]
    returns = [(row.on_goroutine or row).ra for row in rows if row is not None]
    assert len(returns) > 1000
    assert {*returns} == {value(X30), None}


def test_code_on_the_stack_of_the_scheduler_goes_on_with_the_goroutine(program):
    row = row_at(program, after_call(program, "runtime.morestack", "runtime.newstack"), exact=False)
    assert (row.cfa, row.ra) == (value(GOROUTINE_SP), value(GOROUTINE_PC))
    assert dict(row.registers) == {AARCH64.fp: value(GOROUTINE_FP), X30: value(GOROUTINE_RA)}
    assert row.signal  # the function that has no room has no frame yet, so its return address is in x30
    pc = after_call(program, "runtime.systemstack", "gosave_systemstack_switch")
    row = row_at(program, pc, exact=False)
    assert row.cfa == Rule(GOROUTINE_SP, 16, deref=False)
    assert row.on_goroutine.cfa == Rule(AARCH64.sp, 16, deref=False)


@pytest.mark.parametrize("name", ["runtime.morestack", "runtime.mcall"])
def test_x30_is_the_return_address_until_the_runtime_has_noted_it(program, name):
    function = named(program, name)
    code = program.code(function.entry, function.end - function.entry)
    stores = function.entry + code.index(STORES_PC)
    for pc in range(function.entry, stores + 8, 4):
        assert row_at(program, pc).on_goroutine.ra == value(X30)
    noted = row_at(program, stores + 12)
    assert (noted.ra, noted.on_goroutine.ra) == (value(GOROUTINE_PC), value(GOROUTINE_PC))
    x3 = (X30, value(X3)) in row_at(program, function.entry).on_goroutine.registers
    assert x3 == (name == "runtime.morestack")


def test_a_call_that_the_runtime_has_injected_has_pushed_x30(program):
    function = named(program, "runtime.asyncPreempt")
    row = row_at(program, function.entry)
    assert row.cfa == Rule(AARCH64.sp, 16, deref=False)
    assert (X30, Rule(CFA, -16, deref=True)) in row.registers
    assert row.signal
