"""`StartStepper` and `PltStepper` recognize code of libraries by its bytes."""

import pytest

from sfsample.core.arch import AARCH64, AMD64, S390X, Arch
from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA
from sfsample.core.stack import Found, Frame
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.unwind.row import apply_row
from sfsample.unwind.steppers.known_code import PltStepper, StartStepper
from tests.builders.elf_builder import Load, elf

TEXT, AT = 0x1000, 0x1040
RAX, SP, PC = 0, 7, 16

START_CONTEXT = "4889dc 488b3c24 4885ff 7408 e80ff6feff 4889c7 e8a7ccfeff f4"
CLONE = "b838000000 0f05 4885c0 7c13 7401 c3 31ed 58 5f ffd0"
CLONE3 = "b8b3010000 0f05 4885c0 7c18 7401 c3 31ed 4883e4f0"
MUSL_CLONE = "48890e 0f05 85c0 750f 31ed 5f 41ffd1 89c7 31c0"
FCONTEXT = "c3 55 ffe3 4831ff e849feffff f4"
FCONTEXT_IBT = "c3 f30f1efa 55 ffe3 f30f1efa 4831ff e8c8fdffff f4"
START = "f30f1efa 31ed 4989d1 5e 4889e2 4883e4f0 50 54 4531c0 31c9 488d3d00000000 ff1500000000 f4"
MUSL_START = "4831ed 4889e7 488d3500000000 4883e4f0 e805000000 55 4889e5 e800000000"
LD_SO = (
    "4889e7 e8f80b0000 4989c4 488b1424 4889d6 4989e5 4883e4f0 488b3d00000000 498d4cd510 498d5508 31ed "
    "e8f09efeff 488d1500000000 4c89ea 41ffe4"
)

A64_CLONE = "010000d4 1f0000f1 c0000054 4b000054 c0035fd6 4bd1fc17"
S390X_CLONE = "0a00 b9020022 a7840024 eb67f0300004 c0440000000c 07fe"
S390X_CLONE3 = "0a00 b9020022 a7840023 c04400000009 07fe"
S390X_LD_SO = (
    "b904002f a7fbff60 d707f000f000 c0e50000059d b9040082 c0c00000a4e8 a7290040 e322c0000004 e32020000004 "
    "e330f0a00004 4140f0a8 b9040053 eb550003000d 4155f0b0 c0e5ffff6131 a7e90028 e3eec0000004 a7fb00a0 07f8"
)


def make_module(code: bytes, entry: int = 0) -> Module:
    return Module(ElfImage(elf([Load(TEXT, code + bytes(64))], entry=entry), "invented"), 0, "/lib/x.so")


def outcome(
    code: str, at: int, *, exact: bool, entry: bool = False, before: str = "", arch: Arch = AMD64
) -> str:
    """Return the answer for the byte `at` of the code: "outermost", "row" or "not mine"."""
    padding = bytes.fromhex(before).rjust(AT - TEXT, b"\xcc")
    module = make_module(padding + bytes.fromhex(code), AT if entry else 0)
    row = StartStepper().row_at(Frame(AT + at, 0, None, Found.CONTEXT, exact), module, arch)
    return "not mine" if row is None else "outermost" if row.ra is None else "row"


@pytest.mark.parametrize(
    ("code", "exact", "returned_to"),
    [
        (START_CONTEXT, range(25), {0, 17, 25, *range(1, 25)}),
        ("f30f1efa" + START_CONTEXT, range(29), range(30)),  # built for indirect branch tracking
        (MUSL_CLONE, range(9, 15), range(10, 16)),
        (FCONTEXT, range(1, 13), range(1, 14)),
        (FCONTEXT_IBT, range(1, 21), range(1, 22)),
    ],
)
def test_code_where_stacks_begin_is_outermost(code, exact, returned_to):
    size = len(bytes.fromhex(code))

    assert {at for at in range(size + 1) if outcome(code, at, exact=True) == "outermost"} == set(exact)
    assert {at for at in range(size + 1) if outcome(code, at, exact=False) == "outermost"} == set(returned_to)


@pytest.mark.parametrize(
    ("code", "end"), [(START, 37), (MUSL_START, 22), (LD_SO, 61), ("f30f1efa" + LD_SO, 65)]
)
def test_program_entry_is_outermost(code, end):
    size = len(bytes.fromhex(code))

    assert {at for at in range(size) if outcome(code, at, exact=True, entry=True) == "outermost"} == set(
        range(end)
    )
    assert outcome(code, end, exact=False, entry=True) == "outermost"
    assert outcome(code, end + 1, exact=False, entry=True) == "not mine"
    assert outcome(code, 0, exact=True) == "not mine"


def test_return_address_at_start_belongs_to_function_before():
    """A function that never returns may lie right before _start."""
    assert outcome(START, 0, exact=False, entry=True, before="e800000000") == "not mine"
    assert outcome(START_CONTEXT, 0, exact=False, before="e800000000") == "not mine"


@pytest.mark.parametrize(
    ("code", "at"), [(CLONE, {5, 7, 10, 12, 14}), (CLONE3, {5, 7, 10, 12, 14}), (MUSL_CLONE, {3, 5, 7})]
)
def test_clone_row_holds_around_system_call(code, at):
    instructions = {n for n in range(len(bytes.fromhex(code))) if outcome(code, n, exact=True) == "row"}

    assert at <= instructions <= set(range(min(at), max(at) + 2))


def test_clone_row_in_parent_and_child():
    module = make_module(bytes.fromhex(CLONE))
    row = StartStepper().row_at(Frame(TEXT + 7, 0, None, Found.CONTEXT, exact=True), module, AMD64)
    stack = BytesMemory(0x7000, (0x1234).to_bytes(8, "little"))
    parent = apply_row(row, {SP: 0x7000, RAX: 4711, 3: 5}, stack, AMD64)
    child = apply_row(row, {SP: 0x7000, RAX: 0}, stack, AMD64)

    assert (parent.registers[PC], parent.registers[SP], parent.registers[3]) == (0x1234, 0x7008, 5)
    assert child.registers[PC] == 0


@pytest.mark.parametrize("first", ["1f2003d5", "5f2403d5"])
def test_first_instruction_of_aarch64_program_is_outermost(first):
    """As in Debian's crt1.o; from the second instruction on its table is right."""
    answers = [
        outcome(first + "1d0080d2 1e0080d2", at, exact=True, entry=True, arch=AARCH64) for at in (0, 4)
    ]

    assert answers == ["outermost", "not mine"]


def test_end_of_boost_fiber_on_aarch64_is_outermost():
    """The fiber returns to the instruction behind the return of make_fcontext, which follows no call."""
    code = "61000010 014c00f9 c0035fd6 000080d2 21ffff97"
    answers = [outcome(code, at, exact=False, arch=AARCH64) for at in (8, 12, 16, 20, 24)]

    assert answers == ["not mine", "outermost", "outermost", "outermost", "not mine"]


def test_loader_of_s390x_is_outermost():
    size = len(bytes.fromhex(S390X_LD_SO))
    answers = [outcome(S390X_LD_SO, at, exact=True, entry=True, arch=S390X) for at in range(size + 2)]

    assert answers == ["outermost"] * size + ["not mine"] * 2
    assert outcome(S390X_LD_SO, 20, exact=False, entry=True, arch=S390X) == "outermost"
    assert outcome(S390X_LD_SO, 20, exact=False, arch=S390X) == "not mine"


@pytest.mark.parametrize(
    ("arch", "code", "sizes"),
    [(AARCH64, A64_CLONE, (4, 4, 4)), (S390X, S390X_CLONE, (2, 4, 4)), (S390X, S390X_CLONE3, (2, 4, 4))],
)
def test_clone_row_in_parent_and_child_on_other_machines(arch, code, sizes):
    """It holds from the system call to the jump that only the new thread takes."""
    module, result = make_module(bytes.fromhex(code)), {AARCH64: 0, S390X: 2}[arch]
    stack = BytesMemory(0x7000, bytes(160), arch.byteorder)
    for at in (0, sizes[0], sum(sizes[:2])):
        row = StartStepper().row_at(Frame(TEXT + at, 0, None, Found.CONTEXT, exact=True), module, arch)
        parent = apply_row(row, {arch.sp: 0x7000, result: 4711, arch.ra: 0x1234, 8: 5}, stack, arch)
        child = apply_row(row, {arch.sp: 0x7000, result: 0, arch.ra: 0x1234}, stack, arch)

        assert (parent.registers[arch.pc], parent.registers[arch.sp]) == (0x1234, 0x7000)
        assert child.registers[arch.pc] == 0
    assert outcome(code, sum(sizes), exact=True, arch=arch) == "not mine"


def test_clone_row_of_s390x_recovers_two_saved_registers():
    row = StartStepper().row_at(
        Frame(TEXT, 0, None, Found.CONTEXT, exact=True), make_module(bytes.fromhex(S390X_CLONE)), S390X
    )
    saved = bytes(48) + (6).to_bytes(8, "big") + (7).to_bytes(8, "big") + bytes(96)
    known = {15: 0x7000, 2: 1, 14: 0x1234, 6: 66, 7: 77, 8: 8}
    caller = apply_row(row, known, BytesMemory(0x7000, saved, "big"), S390X)

    assert [caller.registers[number] for number in (6, 7, 8)] == [6, 7, 8]


def test_no_row_for_other_code():
    module = make_module(b"")
    for address in (0, TEXT - 1, TEXT, TEXT + 64, TEXT + 100):
        assert (
            StartStepper().row_at(Frame(address, 0, None, Found.CONTEXT, exact=True), module, AMD64) is None
        )
    assert StartStepper().row_at(Frame(TEXT, 0, None, Found.CONTEXT, exact=True), None, AMD64) is None
    assert StartStepper().row_at(Frame(TEXT, 0, None, Found.CONTEXT, exact=True), module, AARCH64) is None


# -- linkage stubs

STUB = "ff2500000000 6800000000 e900000000"
IBT_STUB = "f30f1efa 6800000000 f2e900000000 90"
SECOND = "f30f1efa f2ff2500000000 0f1f440000"
STATIC_STUB = "ff2500000000 6690"
PLT0 = "ff3500000000 ff2500000000 0f1f4000"


@pytest.mark.parametrize(
    ("code", "cfas"),
    [
        (STUB, {0: 8, 6: 8, 11: 16, 16: None}),
        (IBT_STUB, {0: 8, 4: 8, 9: 16}),
        (SECOND, {0: 8, 4: 8, 11: None}),
        (STATIC_STUB, {0: 8, 8: None}),
        (PLT0, {0: 16, 6: 24, 12: None}),
    ],
)
def test_row_at_each_instruction_of_x86_64_stub(code, cfas):
    module = make_module(bytes.fromhex(code))
    for at, cfa in cfas.items():
        frame = Frame(TEXT + at, 0, None, Found.CONTEXT, exact=True)
        row = PltStepper().row_at(frame, module, AMD64)
        assert (row and row.cfa.offset) == cfa, at
        assert PltStepper().row_at(frame._replace(exact=False), module, AMD64) is None


A64_STUB = "300000b0 11fe47f9 10e23f91 20021fd6"
A64_NOP = "500000d0 110240f9 1f2003d5 20021fd6"


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ("f07bbfa9" + A64_STUB, {0: (0, 30), 4: (16, CFA), 8: (16, CFA), 16: (16, CFA)}),
        (A64_STUB, {0: (0, 30), 12: (0, 30), 16: None}),
        ("5f2403d5" + A64_NOP, {0: (0, 30), 4: (0, 30), 16: (0, 30)}),
        ("300000b0 11fe47f9 10e23f91 00021fd6", {0: None, 8: None}),  # br x16: not a stub
    ],
)
def test_row_at_each_instruction_of_aarch64_stub(code, rules):
    """As in tests/fixtures/aarch64/v3/target, by objdump."""
    module = make_module(bytes.fromhex(code))
    for at, rule in rules.items():
        row = PltStepper().row_at(Frame(TEXT + at, 0, None, Found.CONTEXT, exact=True), module, AARCH64)
        assert (row and (row.cfa.offset, row.ra.base)) == rule, at


S390X_STUB = "c010000db720 e31010000004 07f1 0d10 e310100c0014 c0f4ffffffe5 00000000"
S390X_PLT0 = "e310f0380024 c010000db721 d207f0301008 e31010100004 07f1"


@pytest.mark.parametrize(
    ("code", "inside"), [(S390X_STUB, (0, 6, 12, 14, 16, 22)), (S390X_PLT0, (0, 6, 12, 18, 24))]
)
def test_row_at_each_instruction_of_s390x_stub(code, inside):
    """As in Debian's libc.so.6, by objdump; the return address stays in r14."""
    module = make_module(bytes.fromhex(code))
    for at in inside:
        row = PltStepper().row_at(Frame(TEXT + at, 0, None, Found.CONTEXT, exact=True), module, S390X)
        assert (row.cfa.offset, row.ra.base) == (160, 14)
    assert PltStepper().row_at(Frame(TEXT + 40, 0, None, Found.CONTEXT, exact=True), module, S390X) is None
