"""Rows computed from instructions are the rows of the assembler's tables, or none.

tests/differential/test_code_cfi.py compares them at each instruction of each library of this machine.
"""

import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.arch import AARCH64, AMD64
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame, StopReason
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.decode_x86 import Instruction, decode
from sfsample.formats.machine_code.functions import find_function_starts
from sfsample.modules.module import Module
from sfsample.modules.unwind_tables import UnwindTables
from sfsample.unwind.row import UnwindRow, apply_row
from sfsample.unwind.steppers.cfi import CfiStepper
from sfsample.unwind.steppers.code_analysis.flow import Flow, State, Visit
from sfsample.unwind.steppers.code_analysis.rows import PassedRows
from sfsample.unwind.steppers.code_analysis.stepper import CodeStepper
from sfsample.unwind.steppers.conventions import FramePointerStepper
from tests.builders.elf_builder import Load, elf
from tests.builders.walks import CODE, FP, JIT, OUTERMOST, RBX, SP, STACK, RowsByPc, module_map, walk, words

pytestmark = pytest.mark.skipif(decode(b"\xc3", 0) is None, reason="no decoder for x86-64 on this machine")

OLD = bytes.fromhex("4883ec08 ffd1 4883c408 c3")  # CPython 3.12: sub $8,%rsp; call *%rcx; add $8,%rsp; ret
NEW = bytes.fromhex("55 4889e5 ffd1 5d c3")  # later: push %rbp; mov %rsp,%rbp; call *%rcx; pop %rbp; ret
NOP = Instruction(1)
CALL_END = 6  # offset of the instruction behind the call in both

STUBS = """
.macro begin name
.p2align 4, 0xcc
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
begin branches
test %edi, %edi; jz 1f; jmp old
1: push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; call *%rax; jz 2f
.cfi_remember_state; pop %rbx; .cfi_adjust_cfa_offset -8; .cfi_restore rbx; jmp *4096(%rip)
.cfi_restore_state
2: call ends
end branches
begin ends
push %rbx; .cfi_adjust_cfa_offset 8; .cfi_offset rbx, -16; mov %edi, %ebx
1: mov %ebx, %edi; call old; test %eax, %eax; jz 1b; call stops
end ends
begin stops
push %rax; .cfi_adjust_cfa_offset 8; mov $60, %eax; syscall; hlt
end stops
begin framed
push %rbp; .cfi_adjust_cfa_offset 8; .cfi_offset rbp, -16; mov %rsp, %rbp; .cfi_def_cfa_register rbp
push %r12; .cfi_offset r12, -24; push %rbx; .cfi_offset rbx, -32
sub %rdi, %rsp; call old; lea -16(%rbp), %rsp; pop %rbx; .cfi_restore rbx; pop %r12; .cfi_restore r12
leave; .cfi_def_cfa rsp, 8; .cfi_restore rbp; ret
end framed
"""


def at(pc: int, *, exact: bool = True) -> Frame:
    return Frame(pc, STACK, None, Found.CONTEXT, exact=exact)


def row_of(code: bytes) -> UnwindRow | None:
    """Return the row at the first byte of generated code."""
    stepper = CodeStepper().reading(lambda pc, size: code[pc - JIT :][:size] if pc >= JIT else b"")
    return stepper.row_at(at(JIT), None, AMD64)


@pytest.fixture(scope="module")
def stubs(tmp_path_factory) -> Module:
    """Return the functions of STUBS, which have `.eh_frame`."""
    if shutil.which("ld") is None:
        pytest.skip("needs an assembler")
    path = tmp_path_factory.mktemp("stubs")
    (path / "a.s").write_text(STUBS)
    subprocess.run(["as", "-o", "a.o", "a.s"], cwd=path, check=True)
    subprocess.run(
        ["ld", "-shared", "-Bsymbolic", "--eh-frame-hdr", "-o", "a.so", "a.o"], cwd=path, check=True
    )
    return Module(ElfImage((path / "a.so").read_bytes(), str(path / "a.so")), 0, "/stubs")


def instructions(module: Module) -> list[tuple[int, str]]:
    """Return the vaddr and the name of each instruction."""
    command = ["objdump", "-d", "--no-show-raw-insn", module.image.name]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ +([0-9a-f]+):\t(\w+)", text, re.MULTILINE)
    return [(int(vaddr, 16), name) for vaddr, name in found]


def agrees_with_table(module: Module, pc: int, *, exact: bool) -> bool:
    """Check that the row is that of the table; return whether it has a rule for each register."""
    module.tables.code_analysis = None  # search from here, whatever was found before
    row, table_row = (
        stepper.row_at(at(pc, exact=exact), module, AMD64) for stepper in (CodeStepper(), CfiStepper())
    )
    assert row is not None, hex(pc)
    assert table_row is not None, hex(pc)
    assert (row.cfa, row.ra) == (table_row.cfa, table_row.ra), hex(pc)
    saved, kept = dict(table_row.registers), AMD64.callee_saved - dict(table_row.registers).keys()
    comparable = {
        (n, rule) for n, rule in row.registers if rule.base == CFA
    }  # the others are computed from another register
    assert saved.items() >= comparable, hex(pc)
    assert kept >= set(row.kept), hex(pc)
    return len(row.kept) + len(row.registers) == len(AMD64.callee_saved)


def test_row_at_each_instruction_is_that_of_table(stubs):
    vaddrs = [vaddr for vaddr, name in instructions(stubs) if name != "int3"]
    assert len(vaddrs) >= 50
    partial = [vaddr for vaddr in vaddrs if not agrees_with_table(stubs, vaddr, exact=True)]
    assert len(partial) == 2  # before the pushes of `framed`, which finds the saved words by another register


def test_row_behind_each_call_is_that_of_table(stubs):
    """Also behind calls that never return, as in `branches` and `ends`."""
    behind = [vaddr for (_, name), (vaddr, _) in pairwise(instructions(stubs)) if name == "call"]
    assert len(behind) > 5
    assert all(agrees_with_table(stubs, vaddr, exact=False) for vaddr in behind)


@pytest.mark.parametrize(
    "code",
    ["", "90", "4883c4f8c3", "4881c4000000f0c3", "4883ec08c3", "55c3", "488b26c3", "488b6424f8c3", "c20800",
     "4883c408e9", "0000", "ffe0", "f4c3", "ebfe", "4883e4f0c3", "740158c3"],
)  # fmt: skip
def test_no_row_for_unknown_code(code):
    """Unreadable code; a return below the frame; another stack, mov (%rsi),%rsp; a word below the frame,
    mov -8(%rsp),%rsp; ret $8; jumps with an unknown target; hlt; an endless loop; a stack that is aligned;
    two paths to a return that do not agree.
    """
    assert row_of(bytes.fromhex(code)) is None


def test_register_with_unrelated_value_is_unknown():
    row = row_of(bytes.fromhex("53 5d c3"))  # push %rbx; pop %rbp: no rule for the word below sp
    assert row is not None
    assert (dict(row.registers), set(row.kept)) == (
        {FP: Rule(RBX, 0, deref=False)},
        AMD64.callee_saved - {FP},
    )
    row = row_of(bytes.fromhex("31ed c3"))  # xor %ebp,%ebp
    assert row is not None
    assert (dict(row.registers), set(row.kept)) == ({}, AMD64.callee_saved - {FP})


def test_realigned_frame_is_left_through_saved_address():
    row = row_of(bytes.fromhex("4c8b55f8 c9 498d62f8 c3"))  # mov -8(%rbp),%r10; leave; lea -8(%r10),%rsp; ret
    assert row is not None
    assert row.cfa == Rule(FP, -8, deref=True)
    assert dict(row.registers) == {FP: Rule(FP, 0, deref=True)}


@pytest.mark.parametrize(
    ("code", "saved"),
    [
        ("4889ec 5c 5d c3", {FP: 55}),  # libjpeg-turbo: mov %rbp,%rsp; pop %rsp; pop %rbp; ret
        ("4883c440 5c 5d c3", {FP: 55}),  # add $64,%rsp; pop %rsp; pop %rbp; ret
        ("488b642440 5b 5d c3", {RBX: 55, FP: 66}),  # x86inc.asm: mov 64(%rsp),%rsp; pops; ret
    ],
)
def test_aligned_frame_is_left_by_saved_sp(code, saved):
    row = row_of(bytes.fromhex(code))
    old = [*saved.values(), 0x1234]
    stack = words(*[0] * 8, STACK + 160, *[0] * 11, *old)
    assert row is not None
    assert row.guess
    caller = apply_row(row, {SP: STACK, FP: STACK + 64, 12: 77}, stack, AMD64)

    assert caller.cfa == STACK + 160 + 8 * len(old)
    assert caller.registers == {SP: caller.cfa, AMD64.pc: 0x1234, 12: 77, **saved}
    assert set(row.kept) == AMD64.callee_saved - saved.keys()


@given(st.binary(max_size=64))
def test_any_bytes_never_raise(code):
    row = row_of(code)
    assert row is None or row.guess


def test_code_stepper_knows_x86_64_only():
    stepper = CodeStepper().reading(lambda pc, size: OLD[pc - JIT :][:size])

    assert stepper.row_at(at(JIT), None, AMD64) is not None
    assert stepper.row_at(at(JIT), None, AARCH64) is None
    assert CodeStepper().row_at(at(JIT), None, AMD64) is None


ROWS = RowsByPc(
    {
        CODE + 0x10: OUTERMOST,
        CODE + 0x20: UnwindRow(Rule(SP, 8, deref=False), Rule(CFA, -8, deref=True), kept=(FP,)),
    }
)
STEPPERS = (ROWS, CodeStepper(), FramePointerStepper())


@pytest.mark.parametrize(("code", "saved_fp"), [(OLD, FP), (NEW, STACK + 8)])
def test_walk_through_generated_stub(code, saved_fp):
    """The frame pointer would skip the caller of the stub, which has not changed it."""
    stack = walk(words(JIT + CALL_END, saved_fp, CODE + 0x10), *STEPPERS, modules=module_map(generated=code),
                 pc=CODE + 0x20, rbp=STACK + 0x100)  # fmt: skip

    assert [frame.pc for frame in stack.frames] == [CODE + 0x20, JIT + CALL_END, CODE + 0x10]
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.SFRAME, Found.CODE]
    assert stack.stop_reason is StopReason.OUTERMOST


def test_return_address_without_call_is_rejected():
    """Generated code may have changed since the call; then the next stepper is asked."""
    stack = walk(words(JIT + 6, 0, CODE + 0x11), *STEPPERS, modules=module_map(generated=OLD), pc=CODE + 0x20)

    assert [frame.pc for frame in stack.frames] == [CODE + 0x20, JIT + 6]
    assert stack.stop_reason is StopReason.REGISTER_UNKNOWN  # the frame pointer


def test_bytes_inside_instruction_are_not_function_start():
    """The last bytes of `movq $0,(%rax,%rbp,8)` look like a call of the next instruction."""
    moves, called = bytes.fromhex("48c704e800000000"), b"\xe8\x03\0\0\0" + b"\x90" * 3 + b"\xc3"
    code = bytes(16) + moves + b"\x55\xc3" + called
    image = ElfImage(elf([Load(0x1000, code)]), "invented")
    assert find_function_starts(image) == [0x1000 + 16 + len(moves) + 2 + 8]


def test_code_behind_begin_of_coroutine_is_another_function():
    """The function at 9 ends in a call of code that jumps on another stack; an endless loop follows it."""
    code = bytes.fromhex("e804000000 c3 cccccc 4883ec08 e802000000 ebfe 4889fc ffe6")
    image = ElfImage(elf([Load(0x1000, code)]), "invented")
    module = Module(image, 0, "/invented")
    loop = 0x1000 + code.index(b"\xeb\xfe")

    assert find_function_starts(image) == [0x1009, loop + 2]
    assert CodeStepper().row_at(at(loop), module, AMD64) is None


def test_generated_code_is_followed_500_instructions():
    """A JVM has new code in each sample; following 5,000 instructions took 20 ms, and mostly found no row."""
    reads: list[int] = []
    code = b"\xff\xc0" * 2000 + b"\xc3"  # inc %eax

    def read(pc: int, size: int) -> bytes:
        reads.append(pc)
        return code[pc - JIT :][:size]

    assert CodeStepper().reading(read).row_at(at(JIT), None, AMD64) is None
    assert len(set(reads)) <= 501


def test_processes_share_code_analysis_of_file(monkeypatch):
    """PostgreSQL has a process for each client; the analysis took 0.2 s for each, without a sample."""
    searched: list[str] = []
    monkeypatch.setattr(
        "sfsample.unwind.steppers.code_analysis.rows.find_function_starts",
        lambda image: searched.append(image.name) or [],
    )
    image = ElfImage(elf([Load(0x1000, b"\xeb\xfe")]), "invented")
    tables, shared = UnwindTables(image), CodeStepper()
    for base in (0x10000, 0x20000):
        stepper = shared.reading(lambda pc, size: OLD[pc - JIT :][:size])
        module = Module(image, base, "/invented", tables=tables)
        assert stepper.row_at(at(module.address(0x1000)), module, AMD64) is None  # an endless loop
        assert stepper.row_at(at(JIT), None, AMD64) is not None  # generated code of the process
    assert searched == ["invented"]


def calls_of(monkeypatch) -> list[int]:
    """Return a list of the addresses from which code is searched from now on."""
    searches: list[int] = []
    visits = Flow.visits
    monkeypatch.setattr(Flow, "visits", lambda flow, start: searches.append(start) or visits(flow, start))
    return searches


def test_row_found_before_is_that_of_a_search_of_its_own(stubs, monkeypatch):
    """The CFA may hang on another register: rsp, where it has moved by a known distance."""
    shared, searches = CodeStepper(), calls_of(monkeypatch)
    vaddrs = [vaddr for vaddr, name in instructions(stubs) if name != "int3"]
    stubs.tables.code_analysis = None
    rows = {vaddr: shared.row_at(at(vaddr), stubs, AMD64) for vaddr in vaddrs}
    assert len(searches) < len(vaddrs)
    for vaddr, row in rows.items():
        stubs.tables.code_analysis = None
        alone = CodeStepper().row_at(at(vaddr), stubs, AMD64)
        assert row is not None, hex(vaddr)
        assert alone is not None, hex(vaddr)
        if row.cfa.base == alone.cfa.base:
            assert (row.cfa, row.ra, row.kept) == (alone.cfa, alone.ra, alone.kept), hex(vaddr)
            assert dict(row.registers).keys() == dict(alone.registers).keys(), hex(vaddr)


def test_code_that_has_changed_is_searched_again():
    code = bytearray(OLD)
    stepper = CodeStepper().reading(lambda pc, size: bytes(code[pc - JIT :][:size]))
    before = stepper.row_at(at(JIT + 4), None, AMD64)
    code[:] = bytes(len(OLD) - len(NEW)) + NEW
    assert before is not None
    assert stepper.row_at(at(JIT + CALL_END), None, AMD64) != before


def test_loop_without_return_is_searched_once(monkeypatch):
    searches = calls_of(monkeypatch)
    code = b"\xff\xc0" * 2000 + b"\xc3"  # inc %eax
    stepper = CodeStepper().reading(lambda pc, size: code[pc - JIT :][:size])
    assert [stepper.row_at(at(JIT + 2 * n), None, AMD64) for n in range(300)] == [None] * 300
    assert searches == [JIT]


def test_passed_rows_are_bounded(monkeypatch):
    monkeypatch.setattr("sfsample.unwind.steppers.code_analysis.rows._MAX_KEPT", 100)
    known = PassedRows()
    for start in range(0, 10_000, 50):
        known.keep_failure([(Visit(start + n, NOP, State({}, {})), b"") for n in range(150)])
    assert sum(known.row_at(at) is not None for at in range(10_000)) <= 100
