"""The rows of each stepper, over one invented ELF file."""

import pytest

from sfsample.core import arch as machines
from sfsample.core.arch import AARCH64, AARCH64_BE, AMD64
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe import SFrameTable
from sfsample.modules.module import Module
from sfsample.unwind.row import Caller, UnwindRow, apply_row
from sfsample.unwind.rule_cache import RuleCache
from sfsample.unwind.steppers import cfi as eh_frame
from sfsample.unwind.steppers import conventions, known_code, sframe
from sfsample.unwind.steppers.cfi import CfiStepper
from sfsample.unwind.steppers.conventions import FramePointerStepper, NullCallStepper
from sfsample.unwind.steppers.known_code import SignalFrameStepper
from sfsample.unwind.steppers.sframe import SFrameStepper
from tests.builders.eh_frame_builder import (
    AMD64_START,
    EhFrameBuilder,
    advance_loc,
    block,
    def_cfa,
    def_cfa_expression,
    def_cfa_offset,
    offset,
)
from tests.builders.elf_builder import PT_GNU_SFRAME, Bytes, Load, elf
from tests.builders.sframe_builder import AARCH64_LE, S390X, Function, control, flex, row, section

BIAS, TEXT, SFRAME, CFI = 0x5555_0000_0000, 0x1000, 0x2000, 0x3000
RBX, FP, SP, RA = 3, 6, 7, 16
RA_SLOT = Rule(CFA, -8, deref=True)
GLIBC, GO = bytes.fromhex("48c7c00f0000000f05"), bytes.fromhex("b80f0000000f05")


def make_module(
    *functions: Function, cfi: EhFrameBuilder | None = None, code: bytes = b"", **options
) -> Module:
    data = section(3, list(functions), address=SFRAME)
    image = elf(
        [Load(TEXT, code.ljust(0x400, b"\x90")), Load(SFRAME, data, type=PT_GNU_SFRAME)],
        [Bytes(".eh_frame", CFI, cfi.terminated())] if cfi else None,
        **options,
    )
    return Module(ElfImage(image, "invented"), BIAS, "/lib/invented.so")


def frame(vaddr: int, *, exact: bool = True, sp: int = 0) -> Frame:
    return Frame(vaddr + BIAS, sp, None, Found.CONTEXT, exact)


# -- SFrame


def test_sframe_row():
    module = make_module(Function(TEXT, 16, [row(0, 8), row(4, 32, -16), row(8, 16, base="fp")]))

    def at(vaddr):
        return SFrameStepper().row_at(frame(vaddr), module, AMD64)

    assert at(TEXT) == UnwindRow(Rule(SP, 8, deref=False), RA_SLOT, kept=(FP,))
    assert at(TEXT + 4) == UnwindRow(
        Rule(SP, 32, deref=False), RA_SLOT, registers=((FP, Rule(CFA, -16, deref=True)),)
    )
    assert at(TEXT + 8).cfa == Rule(FP, 16, deref=False)
    assert at(TEXT + 16) is None


def test_sframe_looks_up_call_not_next_instruction():
    """After `call abort` as the last instruction, the return address belongs to the next function."""
    module = make_module(Function(TEXT, 16, [row(0, 24)]), Function(TEXT + 16, 16, [row(0, 8)]))

    assert SFrameStepper().row_at(frame(TEXT + 16, exact=False), module, AMD64).cfa.offset == 24
    assert SFrameStepper().row_at(frame(TEXT + 16, exact=True), module, AMD64).cfa.offset == 8


def test_sframe_outermost_and_signal():
    module = make_module(
        Function(TEXT, 16, [row(0)]),
        Function(TEXT + 16, 16, [], signal=True),
        Function(TEXT + 32, 16, [row(0, 8)], signal=True),
    )

    assert SFrameStepper().row_at(frame(TEXT), module, AMD64).ra is None
    assert SFrameStepper().row_at(frame(TEXT + 16), module, AMD64) is None
    assert SFrameStepper().row_at(frame(TEXT + 32), module, AMD64).signal


def test_sframe_of_other_abis_has_return_address_in_register():
    def first(abi: int, *rows, flexible: bool = False) -> UnwindRow:
        table = SFrameTable(section(3, [Function(0, 8, list(rows), flexible=flexible)], abi=abi), 0x2000)
        return sframe.to_row(table.row_at(0), table)

    assert first(AARCH64_LE, row(0, 0)) == UnwindRow(
        Rule(31, 0, deref=False), Rule(30, 0, deref=False), kept=(29,)
    )
    assert first(AARCH64_LE, row(0, 32, -24, -32)).ra == Rule(CFA, -24, deref=True)
    assert first(S390X, row(0, 0)).ra == Rule(14, 0, deref=False)
    moved = first(S390X, flex(0, control(15), 0, control(16), 0), flexible=True)
    assert moved.ra == Rule(16, 0, deref=False)


def test_sframe_without_module_or_table():
    bare = Module(ElfImage(elf([Load(TEXT, bytes(64))]), "bare"), BIAS, "/bare")

    assert SFrameStepper().row_at(frame(TEXT), None, AMD64) is None
    assert SFrameStepper().row_at(frame(TEXT), bare, AMD64) is None
    assert bare.problems == []


def test_damaged_sframe_gives_no_row_and_is_noted_once():
    module = make_module(Function(TEXT, 16, [row(0, 8)], info=3), Function(TEXT + 16, 16, [row(0, 24)]))

    for _ in range(3):
        assert SFrameStepper().row_at(frame(TEXT), module, AMD64) is None
    assert SFrameStepper().row_at(frame(TEXT + 16), module, AMD64).cfa.offset == 24
    [problem] = module.problems
    assert problem.startswith("/lib/invented.so: .sframe+")


# -- .eh_frame


def cfi(program: bytes = b"", size: int = 16, **cie) -> EhFrameBuilder:
    builder = EhFrameBuilder(CFI)
    builder.fde(builder.cie(AMD64_START, **cie), TEXT, size, program)
    return builder


def test_eh_frame_row():
    module = make_module(cfi=cfi(advance_loc(1) + def_cfa_offset(16) + offset(FP, 2)))
    [first, second] = [CfiStepper().row_at(frame(TEXT + i), module, AMD64) for i in (0, 1)]

    assert (first.cfa, first.ra, first.registers) == (Rule(SP, 8, deref=False), RA_SLOT, ())
    assert set(first.kept) == AMD64.callee_saved
    assert second.registers == ((FP, Rule(CFA, -16, deref=True)),)
    assert set(second.kept) == AMD64.callee_saved - {FP}
    assert CfiStepper().row_at(frame(TEXT + 16), module, AMD64) is None
    assert CfiStepper().row_at(frame(TEXT + 16, exact=False), module, AMD64) is not None


def test_eh_frame_signal():
    module = make_module(cfi=cfi(augmentation=b"zRS"))

    assert CfiStepper().row_at(frame(TEXT), module, AMD64).signal


def test_eh_frame_gives_no_row():
    damaged = make_module(cfi=cfi(b"\x3f"))  # no such instruction
    other_machine = make_module(cfi=cfi(), machine=243)

    assert CfiStepper().row_at(frame(TEXT), None, AMD64) is None
    assert CfiStepper().row_at(frame(TEXT), make_module(), AMD64) is None
    assert CfiStepper().row_at(frame(TEXT), other_machine, AMD64) is None
    assert CfiStepper().row_at(frame(TEXT), damaged, AMD64) is None
    assert len(damaged.problems) == 1


@pytest.mark.parametrize("rule", [Rule(CFA, -24, deref=True), Rule(RBX, 0, deref=False), None])
def test_cfi_rules(rule):
    unwind_row = eh_frame.to_row(
        CfiRow(Rule(SP, 8, deref=False), {RA: Rule(CFA, -8, deref=True), RBX: rule}, RA, signal=False), AMD64
    )

    assert unwind_row.registers == (() if rule is None else ((RBX, rule),))
    assert RBX not in unwind_row.kept


def test_cfi_return_addresses():
    def ra_of(rules) -> Rule | None:
        return eh_frame.to_row(CfiRow(Rule(SP, 8, deref=False), rules, RA, signal=False), AMD64).ra

    assert ra_of({RA: None}) is None  # outermost
    assert ra_of({}) == Rule(RA, 0, deref=False)
    assert ra_of({RA: Rule(0, 0, deref=False)}) == Rule(0, 0, deref=False)


def test_cfi_return_address_above_cfa_gives_caller_sp():
    """The CFI of glibc's _dl_runtime_resolve on AArch64 leaves out the words that the stub has pushed."""
    x30 = AARCH64.ra
    unwind_row = eh_frame.to_row(
        CfiRow(Rule(31, 16, deref=False), {x30: Rule(CFA, 8, deref=True)}, x30, signal=False), AARCH64
    )
    stack = BytesMemory(0x7000, b"".join(n.to_bytes(8, "little") for n in range(8)))
    caller = apply_row(unwind_row, {31: 0x7000}, stack, AARCH64)

    assert caller.registers[AARCH64.pc] == 3
    assert caller.registers[AARCH64.sp] == 0x7020
    rules = RuleCache()
    rules.add(frame(TEXT, exact=False), unwind_row, Found.EH_FRAME, AARCH64, 3)
    with pytest.raises(KeyError):
        rules.row_of(frame(TEXT, exact=False))


def test_cfi_that_is_one_instruction_late_is_corrected():
    """As at the first instruction of _dl_runtime_resolve on AArch64; a damaged next FDE changes nothing."""
    sp, x30 = AARCH64.sp, AARCH64.ra
    cfi = EhFrameBuilder(CFI)
    cie = cfi.cie(def_cfa(sp, 0), data_align=8, ra_register=x30)
    cfi.fde(cie, TEXT, 16, advance_loc(4) + offset(x30, 1) + advance_loc(4) + def_cfa_offset(16))
    cfi.fde(cie, TEXT + 16, 16, advance_loc(4) + def_cfa_offset(16) + offset(x30, 1))
    cfi.fde(cie, TEXT + 32, 16, b"")
    cfi.fde(cie, TEXT + 48, 16, b"\x3f")  # no such instruction
    module = make_module(cfi=cfi, machine=AARCH64.machine)

    def at(vaddr):
        return CfiStepper().row_at(frame(vaddr), module, AARCH64)

    assert at(TEXT) == at(TEXT + 4)
    assert at(TEXT).registers == ((sp, Rule(CFA, 16, deref=False)),)
    for usual in (TEXT + 16, TEXT + 32):
        assert (at(usual).ra, at(usual).registers) == (Rule(x30, 0, deref=False), ())


@pytest.mark.parametrize("expression", [b"\x9c", b"\x22"])
def test_cfa_expression_starts_with_empty_stack(expression):
    """DW_OP_call_frame_cfa and DW_OP_plus fail, because there is no CFA yet."""
    module = make_module(cfi=cfi(def_cfa_expression(expression)))
    only_expression = EhFrameBuilder(CFI)
    only_expression.fde(only_expression.cie(b"\x0f" + block(expression)), TEXT, 16)

    for each in (module, make_module(cfi=only_expression)):
        found = CfiStepper().row_at(frame(TEXT), each, AMD64)
        assert found.cfa.base != CFA
        assert not isinstance(apply_row(found, {SP: 0x7000, RA: 0}, BytesMemory(0, b""), AMD64), Caller)


# -- signal frames


@pytest.mark.parametrize("trampoline", [GLIBC, GO])
def test_trampoline_is_recognized_by_code(trampoline):
    module = make_module(code=b"\x90" + trampoline)

    for exact in (False, True):
        found = SignalFrameStepper().row_at(frame(TEXT + 1, exact=exact), module, AMD64)
        assert found.signal
    assert SignalFrameStepper().row_at(frame(TEXT, exact=False), module, AMD64) is None
    assert SignalFrameStepper().row_at(frame(TEXT + 2, exact=True), module, AMD64) is None


@pytest.mark.parametrize("trampoline", [GLIBC, GO])
@pytest.mark.parametrize("size", [2, 0])
def test_thread_at_or_in_system_call_of_trampoline(trampoline, size):
    module = make_module(code=trampoline + b"\x90")
    at_syscall = TEXT + len(trampoline) - size

    assert SignalFrameStepper().row_at(frame(at_syscall, exact=True), module, AMD64) is not None
    assert SignalFrameStepper().row_at(frame(at_syscall, exact=False), module, AMD64) is None


def test_no_signal_frame_without_code():
    module = make_module(code=GLIBC)

    assert SignalFrameStepper().row_at(frame(TEXT), None, AMD64) is None
    assert SignalFrameStepper().row_at(frame(0x9_0000), module, AMD64) is None


def test_signal_frame_restores_every_register():
    """sys/ucontext.h: gregs, 40 bytes into struct ucontext, are R8 ... R15, RDI, RSI, RBP, RBX, RDX, ..."""
    gregs = b"".join((1000 + index).to_bytes(8, "little") for index in range(17))
    ucontext = BytesMemory(0, bytes(40) + gregs)
    found = SignalFrameStepper().row_at(frame(TEXT), make_module(code=GLIBC), AMD64)
    caller = apply_row(found, {SP: 0}, ucontext, AMD64)

    index_of = {8: 0, 9: 1, 10: 2, 11: 3, 12: 4, 13: 5, 14: 6, 15: 7, 5: 8, 4: 9, 6: 10, 3: 11, 1: 12, 0: 13,
                2: 14, 7: 15, 16: 16}  # fmt: skip
    assert caller == Caller(1015, {number: 1000 + index for number, index in index_of.items()})


# -- conventions


def test_frame_pointer_row():
    found = FramePointerStepper().row_at(frame(TEXT), None, AMD64)

    assert found.guess
    assert (found.cfa, found.ra) == (Rule(FP, 16, deref=False), RA_SLOT)
    assert found.registers == ((FP, Rule(CFA, -16, deref=True)),)


def test_null_call_row():
    at_zero = Frame(0, 0x7000, None, Found.CONTEXT, exact=True)
    found = NullCallStepper().row_at(at_zero, None, AMD64)

    assert found.guess
    assert (found.cfa, found.ra) == (Rule(SP, 8, deref=False), RA_SLOT)
    assert set(found.kept) == AMD64.callee_saved
    assert NullCallStepper().row_at(at_zero._replace(exact=False), None, AMD64) is None
    assert NullCallStepper().row_at(at_zero._replace(pc=4096), None, AMD64) is None
    assert NullCallStepper().row_at(at_zero, make_module(), AMD64) is None


def test_stepper_labels():
    labels = {
        SFrameStepper(): Found.SFRAME,
        CfiStepper(): Found.EH_FRAME,
        CfiStepper(debug=True): Found.DEBUG_FRAME,
        SignalFrameStepper(): Found.SIGNAL_FRAME,
        FramePointerStepper(): Found.FRAME_POINTER,
        NullCallStepper(): Found.NULL_CALL,
    }

    assert {stepper: stepper.found for stepper in labels} == labels
    assert {s.__module__ for s in labels} == {
        m.__name__ for m in (sframe, eh_frame, known_code, conventions)}  # fmt: skip


# -- other architectures

KERNEL = {  # where struct rt_sigframe (and s390x's sigframe) has registers: number -> offset from sp
    # siginfo, ucontext at 128: x0 at 312, sp at 560, pc at 568
    (AARCH64, "681180d2010000d4"): {0: 312, 29: 544, 30: 552, 31: 560, 32: 568},
    (AARCH64_BE, "681180d2010000d4"): {0: 312, 29: 544, 30: 552, 31: 560, 32: 568},
    # 160 bytes, svc, siginfo at 168, ucontext at 296: psw at 336, gprs at 352, fpc at 544
    (machines.S390X, "0aad"): {65: 344, 0: 352, 14: 464, 15: 472, 16: 552, 20: 560, 17: 568, 31: 672},
    # 160 bytes, sigcontext of 16, _sigregs at 176
    (machines.S390X, "0a77"): {65: 184, 0: 192, 15: 312, 16: 392},
}  # fmt: skip


@pytest.mark.parametrize(("arch", "code"), KERNEL, ids=lambda v: v if isinstance(v, str) else v.name)
def test_signal_frames_of_other_architectures(arch, code):
    module = make_module(code=bytes.fromhex(code))
    offsets = KERNEL[arch, code]
    words = BytesMemory(0, b"".join(n.to_bytes(8, arch.byteorder) for n in range(0, 1024, 8)), arch.byteorder)
    found = SignalFrameStepper().row_at(frame(TEXT), module, arch)
    registers = apply_row(found, {arch.sp: 0}, words, arch).registers

    assert found.signal
    assert {number: registers[number] for number in offsets} == offsets
    assert arch.callee_saved | {arch.ra, arch.sp, arch.pc} <= registers.keys()
    assert SignalFrameStepper().row_at(frame(TEXT), module, AMD64) is None


@pytest.mark.parametrize("arch", [AARCH64, machines.S390X], ids=lambda arch: arch.name)
def test_null_call_row_with_return_address_in_register(arch):
    found = NullCallStepper().row_at(Frame(0, 0x7000, None, Found.CONTEXT, exact=True), None, arch)
    state = {arch.sp: 0x7000, arch.ra: TEXT, arch.fp: 5}

    assert apply_row(found, state, BytesMemory(0, b""), arch).registers == {
        arch.sp: 0x7000, arch.fp: 5, arch.pc: TEXT}  # fmt: skip


def test_frame_record_of_aarch64_ends_frame():
    found = FramePointerStepper().row_at(frame(TEXT), None, AARCH64)
    memory = BytesMemory(0x7000, b"".join(n.to_bytes(8, "little") for n in (0x7100, 0x23 << 48 | TEXT)))
    caller = apply_row(found, {29: 0x7000, 31: 0x6F00}, memory, AARCH64)

    assert caller == Caller(0x7010, {29: 0x7100, 31: 0x7010, 32: TEXT})


def test_no_frame_pointer_row_on_s390x():
    assert FramePointerStepper().row_at(frame(TEXT), None, machines.S390X) is None
