"""Walks by rows that are well-formed and wrong, or in a process that the tables do not describe.

Each walk ends with a reason, and the next stepper is asked if there is one.  The numbers are groups 20 to 24
of the catalogue of malformed input (fact sheet section 6).
"""

import pytest

from sfsample.core import arch as machines
from sfsample.core.arch import AARCH64, S390X
from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, StopReason
from sfsample.core.walk_limits import MAX_FRAMES
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.unwinder import Unwinder
from tests.builders.eh_frame_builder import AMD64_START, EhFrameBuilder
from tests.builders.elf_builder import PT_GNU_SFRAME, Bytes, Load, elf
from tests.builders.sframe_builder import (
    AARCH64_LE,
    AMD64,
    Function,
    control,
    flex,
    row,
    section,
)
from tests.builders.sframe_builder import (
    S390X as S390X_ABI,
)

BIAS, TEXT, SIZE, SFRAME, CFI = 0x40_0000, 0x1000, 0x1000, 0x3000, 0x5000
CODE, STACK = BIAS + TEXT, 0x7000_0000
FP, SP, PC = 6, 7, 16


def module_map(
    *functions: Function, abi: int = AMD64, cfi: dict[int, int] | None = None, sections=(), code=b""
):
    """Return a map of one module; `cfi`: functions in .eh_frame, start -> size, all with CFA sp+8."""
    machine, order = {AMD64: (62, "little"), AARCH64_LE: (183, "little"), S390X_ABI: (22, "big")}[abi]
    extra = list(sections)
    if cfi:
        built = EhFrameBuilder(CFI)
        cie = built.cie(AMD64_START)
        for start, size in cfi.items():
            built.fde(cie, start, size)
        extra.append(Bytes(".eh_frame", CFI, built.terminated()))
    data = section(3, sorted(functions, key=lambda f: f.start), address=SFRAME, abi=abi)
    segments = [Load(TEXT, code.ljust(SIZE, b"\x90"), offset=0x1000), Load(SFRAME, data, type=PT_GNU_SFRAME)]
    return module_map_over(ElfImage(elf(segments, extra, machine=machine, byteorder=order), "invented"))


def module_map_over(image: ElfImage) -> ModuleMap:
    maps = (
        Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False),
        Mapping(STACK, STACK + 0x10000, True, False, 0, "00:00", 0, "[stack]", False),
    )
    return ModuleMap(lambda: maps, lambda _: image)


def words(*values: int, base: int = STACK, order: str = "little") -> BytesMemory:
    return BytesMemory(base, b"".join(v.to_bytes(8, order) for v in values), order)


def walk(
    modules,
    memory,
    pc: int = CODE,
    sp: int = STACK,
    *,
    arch=machines.AMD64,
    max_frames=MAX_FRAMES,
    **registers,
):
    numbers = {"rbp": FP, "r10": 10, "x29": 29, "x30": 30, "r11": 11, "r14": 14}
    known = {numbers[name]: value for name, value in registers.items()}
    known |= {arch.pc: pc, arch.sp: sp}
    unwinder = Unwinder(modules, max_frames=max_frames)
    return unwinder.walk(ThreadSnapshot(1, known, memory, bounded=False, stop_ns=0, eintr=False, arch=arch))


def reason_and_pcs(stack) -> tuple[StopReason, list[int]]:
    return stack.stop_reason, [frame.pc - CODE for frame in stack.frames]


def one_row(*words_: int, **options) -> Function:
    """Return a function of 16 bytes, at the start of the code, with one row."""
    return Function(TEXT, 16, [row(0, *words_, **options)])


CALLER = Function(TEXT + 0x20, 0x20, [row(0)])  # outermost
RETURN_ADDRESS = CODE + 0x30  # a return address in it

# -- 20: impossible frames


@pytest.mark.parametrize("cfa", [1, 4, 7, 9, 15])
def test_20_unaligned_cfa(cfa):
    """The word there overlaps two others, so it is no return address."""
    modules = module_map(one_row(cfa), CALLER)
    stack = walk(modules, words(RETURN_ADDRESS, RETURN_ADDRESS, RETURN_ADDRESS))

    assert reason_and_pcs(stack) in (
        (StopReason.BAD_PC, [0]), (StopReason.BAD_MEMORY, [0]), (StopReason.NO_PROGRESS, [0]))  # fmt: skip


def test_20_unmapped_cfa():
    assert reason_and_pcs(walk(module_map(one_row(0x4000), CALLER), words(RETURN_ADDRESS))) == (
        StopReason.BAD_MEMORY,
        [0],
    )


@pytest.mark.parametrize("sp", [0, 8, (1 << 64) - 8, 1 << 63])
def test_20_unmapped_stack_pointer(sp):
    assert reason_and_pcs(walk(module_map(one_row(8), CALLER), words(RETURN_ADDRESS), sp=sp)) == (
        StopReason.BAD_MEMORY,
        [0],
    )


@pytest.mark.parametrize("cfa", [-8, -128])
def test_20_cfa_below_the_stack_pointer(cfa):
    memory = words(*[RETURN_ADDRESS] * 64, base=STACK - 256)

    assert reason_and_pcs(walk(module_map(one_row(cfa), CALLER), memory)) == (StopReason.NO_PROGRESS, [0])


def test_20_cfa_equal_to_the_stack_pointer():
    """With CFA sp+0 the return address lies below sp, and the caller is at the same sp."""
    memory = words(RETURN_ADDRESS, RETURN_ADDRESS, base=STACK - 8)

    assert reason_and_pcs(walk(module_map(one_row(0), CALLER), memory)) == (StopReason.NO_PROGRESS, [0])


def test_20_cfa_above_the_stack():
    by_rbp = module_map(one_row(16, -16, base="fp"), CALLER)
    for rbp in (STACK + 0x10_0000, (1 << 64) - 16):
        assert reason_and_pcs(walk(by_rbp, words(RETURN_ADDRESS), rbp=rbp)) == (StopReason.BAD_MEMORY, [0])


def test_20_return_address_zero():
    assert reason_and_pcs(walk(module_map(one_row(8)), words(0))) == (StopReason.OUTERMOST, [0])


@pytest.mark.parametrize("address", [1, 0x1234, STACK + 8, CODE - 8, CODE + SIZE + 8, (1 << 64) - 1])
def test_20_return_address_is_not_code(address):
    assert reason_and_pcs(walk(module_map(one_row(8)), words(address))) == (StopReason.BAD_PC, [0])


def test_20_same_frame_again():
    """rbp points to itself, so the second step does not lead up the stack."""
    modules = module_map(one_row(16, -16, base="fp"))
    memory = words(STACK, CODE + 8)
    stack = walk(modules, memory, rbp=STACK)

    assert reason_and_pcs(stack) == (StopReason.NO_PROGRESS, [0, 8])


def test_20_ring_of_frame_pointers():
    modules = module_map(one_row(16, -16, base="fp"))
    memory = words(STACK + 16, CODE + 8, STACK, CODE + 8)
    stack = walk(modules, memory, rbp=STACK)

    assert (stack.stop_reason, len(stack.frames)) == (StopReason.NO_PROGRESS, 3)


def test_20_depth():
    modules = module_map(one_row(8))
    stack = walk(modules, words(*[CODE + 8] * 5000))

    assert (stack.stop_reason, len(stack.frames)) == (StopReason.MAX_FRAMES, MAX_FRAMES)


# -- 21: the process has changed


def test_21_module_is_unmapped_before_walk():
    """After dlclose or execve the mapping is gone."""
    modules = ModuleMap(lambda: (), lambda _: None)
    stack = walk(modules, words(RETURN_ADDRESS), pc=CODE)

    assert stack.stop_reason is StopReason.NO_MODULE


def test_21_file_is_replaced():
    """The file at the path has other bytes: it cannot be opened, and frame pointers are followed."""

    def refuse(_):
        raise FormatError("/bin/invented", 0, "not an ELF file")

    mapping = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", True)
    stack = walk(ModuleMap(lambda: (mapping,), refuse), words(STACK + 16, CODE + 0x18), rbp=STACK)

    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.FRAME_POINTER]


@pytest.mark.parametrize("keep", [20, 28, 40, 60])
def test_21_file_is_truncated(keep):
    """The end of the section is missing: the section is dropped, and CFI is asked."""
    whole = section(3, [one_row(8), CALLER], address=SFRAME)
    built = EhFrameBuilder(CFI)
    cie = built.cie(AMD64_START)
    built.fde(cie, TEXT, 16)
    built.fde(cie, TEXT + 0x20, 0x20, b"\x07\x10")
    data = elf(
        [Load(TEXT, bytes(SIZE), offset=0x1000), Load(SFRAME, whole[:keep], type=PT_GNU_SFRAME)],
        [Bytes(".eh_frame", CFI, built.terminated())],
    )
    modules = module_map_over(ElfImage(data, "invented"))
    stack = walk(modules, words(RETURN_ADDRESS))

    assert reason_and_pcs(stack) == (StopReason.OUTERMOST, [0, 0x30])
    assert stack.frames[1].found is Found.EH_FRAME
    assert len(modules.find(CODE).problems) == 1


def test_21_copy_ends_inside_word():
    """A word that is partly in the copy cannot be read."""
    modules = module_map(one_row(16), CALLER)
    for size in range(16):
        stack = walk(modules, BytesMemory(STACK, (words(0, RETURN_ADDRESS).data)[:size]))
        assert reason_and_pcs(stack) == (StopReason.BAD_MEMORY, [0])
    halves = PiecewiseMemory(BytesMemory(STACK, bytes(12)), BytesMemory(STACK + 12, bytes(4)))
    assert reason_and_pcs(walk(modules, halves)) == (StopReason.BAD_MEMORY, [0])


# -- 22: sections that describe a part of the code


def test_22_plt_only():
    """Linking objects with and without SFrame leaves rows for the PLT alone; CFI describes the rest."""
    plt = Function(TEXT + 0x800, 0x20, [row(0, 8), row(11, 16)], repeat=16)
    modules = module_map(plt, cfi={TEXT: 16, TEXT + 0x20: 0x20})
    stack = walk(modules, words(0, CODE + 8, RETURN_ADDRESS, 0), pc=CODE + 0x81B)

    assert reason_and_pcs(stack) == (StopReason.OUTERMOST, [0x81B, 8, 0x30])
    assert [f.found for f in stack.frames[1:]] == [Found.SFRAME, Found.EH_FRAME]


def test_22_plt_got():
    """The row of ld says sp+16, but the CFA in the stub is sp+8."""
    modules = module_map(CALLER, Function(TEXT + 0x800, 0x20, [row(0, 16)], repeat=8))

    assert reason_and_pcs(walk(modules, words(RETURN_ADDRESS, 0xBAD), pc=CODE + 0x80A)) == (
        StopReason.OUTERMOST,
        [0x80A, 0x30],
    )
    [table] = modules.find(CODE).tables.sframe
    assert len(table.check()) == 1


def test_22_plt_sec_of_ld_2_40():
    """The rows of V1 are wrong here, and are left out; `.eh_frame` is right."""
    data = section(1, [Function(TEXT + 0x800, 16, [row(0, 16), row(6, 24)])], address=SFRAME)
    built = EhFrameBuilder(CFI)
    built.fde(built.cie(AMD64_START), TEXT + 0x800, 16)
    segments = [Load(TEXT, bytes(SIZE), offset=0x1000), Load(SFRAME, data, type=PT_GNU_SFRAME)]
    for sections, expected in (([Bytes(".eh_frame", CFI, built.terminated())], [0x804, 0x30]), ([], [0x804])):
        stack = walk(
            module_map_over(ElfImage(elf(segments, sections), "x")),
            words(RETURN_ADDRESS, 0xBAD),
            pc=CODE + 0x804,
        )
        assert reason_and_pcs(stack)[1] == expected


# -- 23: rules that hold in the innermost frame only


def leaf_and_caller(abi: int, leaf, caller) -> ModuleMap:
    return module_map(Function(TEXT, 16, [leaf]), Function(TEXT + 0x20, 0x20, [caller]), abi=abi)


def test_23_aarch64_leaf_rule():
    """The innermost frame may keep its return address in x30 and sp unchanged; a caller cannot."""
    modules = leaf_and_caller(AARCH64_LE, row(0, 0), row(0))
    assert reason_and_pcs(walk(modules, words(), arch=AARCH64, x30=RETURN_ADDRESS)) == (
        StopReason.OUTERMOST,
        [0, 0x30],
    )
    modules = leaf_and_caller(AARCH64_LE, row(0, 16, -8), row(0, 0))
    stack = walk(modules, words(0, RETURN_ADDRESS), arch=AARCH64, x30=RETURN_ADDRESS)
    assert reason_and_pcs(stack) == (StopReason.REGISTER_UNKNOWN, [0, 0x30])


def test_23_aarch64_only_the_innermost_frame_may_leave_sp_alone():
    modules = leaf_and_caller(AARCH64_LE, row(0, -16), row(0))
    assert reason_and_pcs(walk(modules, words(), arch=AARCH64, x30=RETURN_ADDRESS)) == (
        StopReason.NO_PROGRESS,
        [0],
    )
    modules = leaf_and_caller(AARCH64_LE, row(0, 16, -8), row(0, 0, 8))
    stack = walk(modules, words(0, RETURN_ADDRESS, 0, RETURN_ADDRESS), arch=AARCH64)
    assert reason_and_pcs(stack) == (StopReason.NO_PROGRESS, [0, 0x30])


def test_23_aarch64_signed_return_address():
    modules = leaf_and_caller(AARCH64_LE, row(0, 16, -8, mangled=True), row(0))
    stack = walk(modules, words(0, RETURN_ADDRESS | 0x00AB << 48), arch=AARCH64)

    assert reason_and_pcs(stack) == (StopReason.OUTERMOST, [0, 0x30])


def test_23_s390x_leaf_rule():
    modules = leaf_and_caller(S390X_ABI, row(0, 0), row(0))
    assert reason_and_pcs(walk(modules, words(order="big"), arch=S390X, r14=RETURN_ADDRESS)) == (
        StopReason.OUTERMOST,
        [0, 0x30],
    )
    modules = leaf_and_caller(S390X_ABI, row(0, 20, -48), row(0, 0))
    stack = walk(modules, words(*[RETURN_ADDRESS] * 64, order="big"), arch=S390X, r14=RETURN_ADDRESS)
    assert reason_and_pcs(stack) == (StopReason.REGISTER_UNKNOWN, [0, 0x30])


def test_23_rules_by_another_register():
    """r10, for a realigned frame, is known in the innermost frame and unknown in a caller."""
    realigned = Function(TEXT, 16, [flex(0, control(10), 0)], flexible=True)
    stack = walk(module_map(realigned, CALLER), words(0, 0, 0, RETURN_ADDRESS), r10=STACK + 32)
    assert reason_and_pcs(stack) == (StopReason.OUTERMOST, [0, 0x30])
    above = Function(TEXT + 0x20, 0x20, [flex(0, control(10), 0)], flexible=True)
    stack = walk(module_map(one_row(8), above), words(RETURN_ADDRESS, 0, RETURN_ADDRESS), r10=STACK + 24)
    assert reason_and_pcs(stack) == (StopReason.REGISTER_UNKNOWN, [0, 0x30])


# -- 24: the call is looked up, not the instruction after it


def test_24_noreturn_call_as_last_instruction():
    """The return address is the first byte of the next function, which has another row."""
    calls_abort = Function(TEXT + 0x10, 0x10, [row(0, 24)])
    modules = module_map(one_row(8), calls_abort, CALLER)
    stack = walk(modules, words(CODE + 0x20, 0, 0, RETURN_ADDRESS))

    assert reason_and_pcs(stack) == (StopReason.OUTERMOST, [0, 0x20, 0x30])


def test_24_exact_pc_is_looked_up_unchanged():
    modules = module_map(Function(TEXT, 16, [row(0, 24)]), Function(TEXT + 16, 16, [row(0, 8)]), CALLER)

    assert reason_and_pcs(walk(modules, words(RETURN_ADDRESS), pc=CODE + 16)) == (
        StopReason.OUTERMOST,
        [16, 0x30],
    )


def test_24_return_address_is_trampoline():
    """pc-1 lies in another function with other rows; the trampoline is recognized by its bytes."""
    sigreturn = bytes.fromhex("48c7c00f0000000f05")
    code = bytes(0x100) + sigreturn
    handler, before = one_row(8), Function(TEXT + 0xF0, 0x10, [row(0, 4096)])
    gregs = [0] * 17
    gregs[15], gregs[16] = STACK + 0x400, RETURN_ADDRESS
    modules = module_map(handler, before, CALLER, code=code)
    stack = walk(modules, words(CODE + 0x100, *[0] * 5, *gregs))

    assert reason_and_pcs(stack) == (StopReason.OUTERMOST, [0, 0x100, 0x30])
    assert stack.frames[2].found is Found.SIGNAL_FRAME
    assert stack.frames[2].exact
