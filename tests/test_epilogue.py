"""Generated code that goes straight to its return: as the assembler's tables say, and no other."""

import platform
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.arch import AARCH64, AMD64
from sfsample.formats.elf import ElfImage
from sfsample.model import CFA, Found, Frame, Rule, StopReason
from sfsample.modules.module import Module
from sfsample.unwind.eh_frame import EhFrameStepper
from sfsample.unwind.epilogue import EpilogueStepper, straight_row
from sfsample.unwind.frame_pointer import FramePointerStepper
from sfsample.unwind.row import UnwindRow
from tests.builders.walks import CODE, FP, JIT, OUTERMOST, SP, STACK, Says, index_of, walk, words

OLD = bytes.fromhex("4883ec08 ffd1 4883c408 c3")  # CPython 3.12: sub $8,%rsp; call *%rcx; add $8,%rsp; ret
NEW = bytes.fromhex("55 4889e5 ffd1 5d c3")  # later: push %rbp; mov %rsp,%rbp; call *%rcx; pop %rbp; ret
RETURN = 6  # where the call of either returns to

STUBS = """
.macro begin name
.globl \\name
.type \\name, @function
\\name:
.cfi_startproc
.endm
.macro end name
.cfi_endproc
.size \\name, .-\\name
.endm
begin old
sub $8, %rsp; .cfi_adjust_cfa_offset 8; call *%rcx; add $8, %rsp; .cfi_adjust_cfa_offset -8; ret
end old
begin new
endbr64; push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset rbp, -16; mov %rsp, %rbp; call *%r11
pop %rbp; .cfi_adjust_cfa_offset -8; .cfi_restore rbp; ret
end new
begin large
push %r15; .cfi_adjust_cfa_offset 8; .cfi_offset r15, -16
push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -24
push %rdi; .cfi_adjust_cfa_offset 8; sub $4096, %rsp; .cfi_adjust_cfa_offset 4096
call old; add $4096, %rsp; .cfi_adjust_cfa_offset -4096; pop %rdi; .cfi_adjust_cfa_offset -8
pop %rbx; .cfi_adjust_cfa_offset -8; .cfi_restore rbx
pop %r15; .cfi_adjust_cfa_offset -8; .cfi_restore r15; ret
end large
"""


@pytest.fixture(scope="module")
def stubs(tmp_path_factory) -> Module:
    """Stubs with tables."""
    if platform.machine() != "x86_64" or shutil.which("ld") is None:
        pytest.skip("needs an assembler for x86-64")
    path = tmp_path_factory.mktemp("stubs")
    (path / "a.s").write_text(STUBS)
    subprocess.run(["as", "-o", "a.o", "a.s"], cwd=path, check=True)
    subprocess.run(
        ["ld", "-shared", "-Bsymbolic", "--eh-frame-hdr", "-o", "a.so", "a.o"], cwd=path, check=True
    )
    return Module(ElfImage((path / "a.so").read_bytes(), str(path / "a.so")), 0, "/stubs")


def instructions(module: Module) -> list[int]:
    text = subprocess.run(
        ["objdump", "-d", module.image.name], capture_output=True, text=True, check=True
    ).stdout
    return [int(vaddr, 16) for vaddr in re.findall(r"^ +([0-9a-f]+):\t", text, re.MULTILINE)]


def test_at_every_instruction_of_a_stub_the_row_is_that_of_its_table(stubs):
    vaddrs = instructions(stubs)
    assert len(vaddrs) == 20
    for vaddr in vaddrs:
        theirs = EhFrameStepper().row_at(Frame(vaddr, 0, None, Found.CONTEXT, exact=True), stubs, AMD64)
        ours = straight_row(bytes(stubs.image.loaded(vaddr)))
        assert ours is not None, hex(vaddr)
        assert (ours.cfa, ours.ra, dict(ours.registers)) == (theirs.cfa, theirs.ra, dict(theirs.registers)), (
            hex(vaddr)
        )
        assert set(ours.kept) == AMD64.callee_saved - dict(theirs.registers).keys()


@pytest.mark.parametrize(
    "code",
    ["", "90c3", "4883c408", "4883c4f8c3", "4881c4000000f0c3", "4883ec08c3", "55c3", "5cc3", "c20800",
     "eb00c3", "4883c408e9", "0000"],
)  # fmt: skip
def test_what_it_does_not_know(code):
    """Another instruction, the end of what can be read, a jump; a return below the frame; pop %rsp."""
    assert straight_row(bytes.fromhex(code)) is None


def test_a_register_that_gets_a_strange_value_is_unknown():
    row = straight_row(bytes.fromhex("53 5d c3"))  # push %rbx; pop %rbp
    assert (dict(row.registers), set(row.kept)) == ({}, AMD64.callee_saved - {FP})
    row = straight_row(bytes.fromhex("4889e5 c3"))  # mov %rsp,%rbp
    assert (dict(row.registers), set(row.kept)) == ({}, AMD64.callee_saved - {FP})


@given(st.binary(max_size=64))
def test_any_bytes_never_raise(code):
    row = straight_row(code)
    assert row is None or row.guess


def test_it_answers_for_generated_code_of_x86_64_only():
    stepper = EpilogueStepper().reading(lambda _, size: OLD[:size])
    frame = Frame(JIT, STACK, None, Found.CONTEXT, exact=True)

    assert stepper.row_at(frame, None, AMD64) is not None
    assert stepper.row_at(frame, None, AARCH64) is None
    assert stepper.row_at(frame, index_of().find(CODE), AMD64) is None
    assert EpilogueStepper().row_at(frame, None, AMD64) is None


ROWS = Says(
    {
        CODE + 0x10: OUTERMOST,
        CODE + 0x20: UnwindRow(Rule(SP, 8, deref=False), Rule(CFA, -8, deref=True), kept=(FP,)),
    }
)
STEPPERS = (ROWS, EpilogueStepper(), FramePointerStepper())


@pytest.mark.parametrize(("code", "saved_fp"), [(OLD, FP), (NEW, STACK + 8)])
def test_a_walk_through_a_stub(code, saved_fp):
    """The frame pointer (the evaluator has not changed it) would skip the stub's caller."""
    stack = walk(words(JIT + RETURN, saved_fp, CODE + 0x10), *STEPPERS, index=index_of(generated=code),
                 pc=CODE + 0x20, rbp=STACK + 0x100)  # fmt: skip

    assert [frame.pc for frame in stack.frames] == [CODE + 0x20, JIT + RETURN, CODE + 0x10]
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.SFRAME, Found.EPILOGUE]
    assert stack.stop_reason is StopReason.OUTERMOST


def test_a_return_address_that_no_call_precedes_is_not_believed():
    """Other code may have been written there since: then the next stepper is asked."""
    stack = walk(words(JIT + 6, 0, CODE + 0x11), *STEPPERS, index=index_of(generated=OLD), pc=CODE + 0x20)

    assert [frame.pc for frame in stack.frames] == [CODE + 0x20, JIT + 6]
    assert stack.stop_reason is StopReason.REGISTER_UNKNOWN  # the frame pointer
