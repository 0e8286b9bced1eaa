"""Steps by convention, and when they are accepted: frame pointers, null calls, leaf functions, scanning."""

import pytest

from sfsample.core.arch import AARCH64
from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.stack import Found, StopReason
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.steppers.code_analysis.stepper import CodeStepper
from sfsample.unwind.steppers.conventions import FramePointerStepper
from sfsample.unwind.steppers.known_code import StartStepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, Unwinder
from tests.builders.elf_builder import Load, elf
from tests.builders.walks import (
    CODE,
    JIT,
    LEAF,
    OUTERMOST,
    SIZE,
    STACK,
    TEXT,
    RowsByPc,
    module_map,
    pcs,
    snapshot,
    walk,
    words,
)

# -- frame pointers


def frame_pointer_chain(*returns: int) -> BytesMemory:
    """Return a stack of frames of 16 bytes: saved rbp, return address."""
    cells: list[int] = []
    for number, address in enumerate(returns):
        cells += [STACK + 16 * (number + 1), address]
    return words(*cells)


def test_frame_pointers_are_followed_without_tables():
    known = RowsByPc({CODE + 0x20: OUTERMOST})
    stack = walk(frame_pointer_chain(CODE + 0x10, CODE + 0x20), known, *DEFAULT_STEPPERS, rbp=STACK)

    assert pcs(stack) == [0, 0x10, 0x20]
    assert [frame.found for frame in stack.frames[1:]] == [Found.FRAME_POINTER] * 2
    assert stack.stop_reason is StopReason.OUTERMOST


def test_guessed_return_address_follows_call():
    calls = {
        "call rel32": b"\x90\x90\xe8\x00\x00\x00\x00",
        "call *%rax": b"\x90\x90\x90\x90\x90\xff\xd0",
        "call *8(%rax)": b"\x90\x90\x90\x90\xff\x50\x08",
        "call *8(%rax,%rbx)": b"\x90\x90\x90\xff\x54\x18\x08",
        "call *symbol(%rip)": b"\x90\xff\x15\x00\x00\x00\x00",
        "call *table(,%rax,8)": b"\xff\x14\xc5\x00\x00\x00\x00",
    }
    others = {"jmp rel32": b"\x90\x90\xe9\x00\x00\x00\x00", "jmp *%rax": b"\x90\x90\x90\x90\x90\xff\xe0",
              "nop": b"\x90" * 7}  # fmt: skip
    for number, code in enumerate([*calls.values(), *others.values()]):
        image = ElfImage(elf([Load(TEXT, code.ljust(SIZE, b"\x90"), offset=0x1000)]), "invented")
        mapping = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)
        modules = ModuleMap(lambda m=mapping: (m,), lambda _, i=image: i)
        stack = walk(
            frame_pointer_chain(CODE + 7), *DEFAULT_STEPPERS, modules=modules, pc=CODE + 0x40, rbp=STACK
        )
        assert pcs(stack)[1:2] == ([7] if number < len(calls) else [])


def code_of_calls(calls: dict[int, int], **bytes_at: str) -> bytes:
    """Return code with direct calls {return address: target}, and other bytes at hexadecimal offsets."""
    code = bytearray(b"\xcc" * SIZE)
    for end, target in calls.items():
        code[end - 5 : end] = b"\xe8" + (target - end).to_bytes(4, "little", signed=True)
    for at, content in bytes_at.items():
        data = bytes.fromhex(content)
        code[int(at[1:], 16) : int(at[1:], 16) + len(data)] = data
    return bytes(code)


@pytest.mark.parametrize(
    ("content", "is_accepted"),
    [
        ({"x200": "90 c3"}, False),  # the target returns, and another function follows it
        ({"x200": "90 eb 3d"}, True),  # it jumps to the function of the frame (a tail call)
        ({"x200": "90 ff e0"}, True),  # it jumps to anywhere
        ({"x200": "e8 fb 00 00 00 c3", "x300": "e9 3b ff ff ff"}, False),  # its callee jumps there
    ],
    ids=["other", "tail call", "indirect tail call", "callee of callee"],
)
def test_direct_call_before_guessed_return_address_leads_to_the_frame(content, is_accepted):
    code = code_of_calls({0x100: 0x200}, x240="90 90 c3", **content)
    stack = walk(
        words(0, CODE + 0x100),
        FramePointerStepper(),
        pc=CODE + 0x241,
        modules=module_map(code=code),
        rbp=STACK,
    )
    assert pcs(stack) == ([0x241, 0x100] if is_accepted else [0x241])


@pytest.mark.parametrize("target", [0x200, 0x300])
def test_table_says_where_direct_call_leads_on_aarch64(target, monkeypatch):
    """No code is analysed there: the two addresses lie in one function, or the guess is rejected."""
    monkeypatch.setattr(Module, "function_start", lambda _, pc: pc & ~0xFF)
    code = bytearray(SIZE)
    code[0xFC:0x100] = (0x9400_0000 | (target - 0xFC) // 4).to_bytes(4, "little")
    image = ElfImage(elf([Load(TEXT, bytes(code), offset=0x1000)], machine=AARCH64.machine), "invented")
    mapping = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)
    unwinder = Unwinder(ModuleMap(lambda: (mapping,), lambda _: image), steppers=(FramePointerStepper(),))
    registers = {AARCH64.pc: CODE + 0x240, AARCH64.sp: STACK, AARCH64.fp: STACK}
    taken = snapshot(words(0, CODE + 0x100))._replace(registers=registers, arch=AARCH64)

    assert pcs(unwinder.walk(taken)) == ([0x240, 0x100] if target == 0x200 else [0x240])


@pytest.mark.parametrize(
    "content", ["", "c9 c3", "4889dc 5b c3"], ids=["frame pointer", "leave", "sp was in rbx"]
)
def test_guess_leads_to_no_other_stack(content):
    """Code has changed to another stack, and its frame is on the old one (Go's systemstack, coroutines)."""
    other = STACK + 0x20000
    stacks = [Mapping(at, at + 0x10000, True, False, 0, "00:00", 0, "", False) for at in (STACK, other)]
    code = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)
    program = code_of_calls({}, x0=content, xe="ff d0")
    modules = ModuleMap(lambda: (code, *stacks), module_map(code=program)._open_image)
    memory = PiecewiseMemory(words(0), words(0, CODE + 0x10, base=other))
    stack = walk(memory, *DEFAULT_STEPPERS, modules=modules, rbp=other, rbx=other)

    assert (pcs(stack), stack.stop_reason) == ([0], StopReason.NO_ROW)


def test_rejected_guess_gives_no_stop_reason():
    for address in (CODE + 0x12, CODE + 3, 0x1234, 0):
        stack = walk(frame_pointer_chain(address), *DEFAULT_STEPPERS, rbp=STACK)
        assert (stack.stop_reason, pcs(stack)) == (StopReason.NO_ROW, [0])


def test_guess_into_unreadable_code_is_accepted():
    stack = walk(frame_pointer_chain(JIT + 3), *DEFAULT_STEPPERS, modules=module_map(jit=True), rbp=STACK)

    assert [frame.pc for frame in stack.frames] == [CODE, JIT + 3]


def test_guess_may_lead_to_code_where_stacks_begin():
    """Boost prepares a return to the end of a fiber (xor %rdi,%rdi; call _exit; hlt) without a call."""
    code = bytearray(b"\xcc" * SIZE)
    code[0x7E:0x8A] = bytes.fromhex("55ffe3 4831ff e800000000 f4")
    modules = module_map(code=bytes(code))
    stack = walk(words(0, CODE + 0x81), StartStepper(), FramePointerStepper(), rbp=STACK, modules=modules)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x81], StopReason.OUTERMOST)
    stack = walk(words(0, CODE + 0x8C), StartStepper(), FramePointerStepper(), rbp=STACK, modules=modules)
    assert (pcs(stack), stack.stop_reason) == ([0], StopReason.NO_ROW)


def test_chain_of_frame_pointers_ends_in_zero():
    stack = walk(words(0, CODE + 0x10), FramePointerStepper(), rbp=STACK)

    assert pcs(stack) == [0, 0x10]
    assert stack.stop_reason is StopReason.OUTERMOST


def test_zero_fp_without_chain_is_not_stack_end():
    """A function without a frame pointer may use rbp as a counter."""
    stack = walk(words(CODE + 0x20), RowsByPc({CODE: LEAF}), FramePointerStepper(), rbp=0)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x20], StopReason.NO_ROW)


def test_zero_fp_of_analysed_code_is_not_stack_end():
    """A wrong caller (call; leave; ret) counts its CFA from a register that is no frame pointer."""
    modules = module_map(code=code_of_calls({0x20: 0}, x0="c3", x20="c9 c3"))
    stack = walk(words(CODE + 0x20), CodeStepper(), modules=modules, rbp=0)

    assert (pcs(stack), stack.stop_reason) == ([0, 0x20], StopReason.NO_ROW)


def test_unreadable_module_is_walked_by_frame_pointers():
    def refuse(mapping):
        raise FormatError(mapping.path, 0, "damaged")

    mapping = Mapping(CODE, CODE + SIZE, True, True, 0x1000, "08:01", 7, "/bin/invented", False)
    modules = ModuleMap(lambda: (mapping,), refuse)
    stack = walk(frame_pointer_chain(CODE + 0x10), *DEFAULT_STEPPERS, modules=modules, rbp=STACK)

    assert pcs(stack) == [0, 0x10]
    assert len(modules.problems) == 1


# -- calls to no code


def test_call_through_null_pointer():
    stack = walk(words(CODE + 0x10), RowsByPc({CODE + 0x10: OUTERMOST}), *DEFAULT_STEPPERS, pc=0)

    assert [frame.pc for frame in stack.frames] == [0, CODE + 0x10]
    assert stack.frames[1].found is Found.NULL_CALL


NOWHERE = {"unmapped": 0x1234_5678_9000, "the stack": STACK + 0x100, "not canonical": 0x4141 << 48}


@pytest.mark.parametrize("where", NOWHERE)
@pytest.mark.parametrize("rbp", [0, STACK + 8], ids=["no fp", "fp"])
def test_call_through_stray_pointer(where, rbp):
    """No code can have run, so the return address is at sp; the frame pointer would skip the caller."""
    memory = words(CODE + 0x10, 0, CODE + 0x20)
    rows = RowsByPc({CODE + 0x10: OUTERMOST, CODE + 0x20: OUTERMOST})
    stack = walk(memory, rows, *DEFAULT_STEPPERS, pc=NOWHERE[where], rbp=rbp)

    assert [frame.pc for frame in stack.frames] == [NOWHERE[where], CODE + 0x10]
    assert stack.frames[1].found is Found.NULL_CALL


def test_jump_to_unmapped_address():
    """The word at sp follows no call, because the thread jumped."""
    stack = walk(words(CODE + 0x18, CODE + 0x10), *DEFAULT_STEPPERS, pc=NOWHERE["unmapped"])

    assert (len(stack.frames), stack.stop_reason) == (1, StopReason.NO_MODULE)


def test_generated_code_is_not_null_call():
    """Anonymous executable memory holds code, so the null call stepper does not answer."""
    stack = walk(words(CODE + 0x10), *DEFAULT_STEPPERS, pc=JIT, modules=module_map(jit=True))

    assert [frame.pc for frame in stack.frames] == [JIT]
