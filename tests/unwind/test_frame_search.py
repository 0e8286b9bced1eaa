"""`Unwinder.search` finds a frame by the call that made it, and accepts it only with proof."""

from pathlib import Path

import pytest

from sfsample.core.memory import BytesMemory
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, StopReason
from sfsample.formats.elf.image import PF_X, PT_LOAD, ElfImage
from sfsample.formats.machine_code.calls import stub_slot
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.row import UnwindRow
from sfsample.unwind.unwinder import Unwinder
from tests.builders.walks import (
    CODE,
    FP,
    LEAF,
    OUTERMOST,
    SP,
    STACK,
    RowsByPc,
    module_map,
    pcs,
    snapshot,
    text,
    words,
)

FIXTURES = Path(__file__).parents[1] / "fixtures"
START, ASLEEP, CALL, OTHER, INDIRECT, STUB, BY_STUB, END = (
    0x400,
    0x440,
    0x100,
    0x200,
    0x300,
    0x600,
    0x380,
    0x500,
)
RETURN = 9
BY_FP = UnwindRow(
    Rule(FP, 16, deref=False), Rule(CFA, -8, deref=True), ((FP, Rule(CFA, -16, deref=True)),), kept=(3,)
)
ROWS = {
    CODE: LEAF, CODE + ASLEEP: BY_FP, CODE + CALL: LEAF, CODE + OTHER: LEAF, CODE + INDIRECT: LEAF,
    CODE + BY_STUB: LEAF, CODE + END: OUTERMOST,
}  # fmt: skip


def code() -> bytes:
    """Return code with calls, which end at CALL, OTHER, BY_STUB and INDIRECT."""
    made = bytearray(text())
    for at, target in ((CALL, START), (OTHER, START), (BY_STUB, STUB)):
        made[at - 5 : at] = b"\xe8" + (target - at).to_bytes(4, "little", signed=True)
    made[INDIRECT - 5 : INDIRECT] = b"\x90\x90\x90\xff\xd0"
    made[STUB : STUB + 11] = b"\xf3\x0f\x1e\xfa\xf2\xff\x25" + (0x700 - STUB - 11).to_bytes(4, "little")
    return bytes(made)


@pytest.fixture(autouse=True)
def function_starts(monkeypatch):
    monkeypatch.setattr(Module, "function_start", lambda _, pc: CODE + START if pc > CODE + START else None)


def search(*above: int, modules: ModuleMap | None = None):
    """Search a stack whose first word is the return address ASLEEP, where the row lacks its register."""
    memory = words(CODE + ASLEEP, *above)
    unwinder = Unwinder(modules or module_map(code=code()), steppers=(RowsByPc(ROWS),))
    taken = snapshot(memory)
    stack = unwinder.walk(taken)
    assert stack.stop_reason is StopReason.REGISTER_UNKNOWN
    return unwinder.search(taken, stack)


def test_search_ends_frame_at_return_address_of_call_to_its_function():
    stack = search(7, CODE + INDIRECT, 8, 0xF9, CODE + CALL, CODE + END)

    assert pcs(stack) == [0, ASLEEP, CALL, END]
    assert [frame.found for frame in stack.frames] == [Found.CONTEXT, Found.SFRAME, Found.SCAN, Found.SFRAME]
    assert stack.stop_reason is StopReason.OUTERMOST
    assert stack.frames[1].cfa == STACK + 6 * 8


@pytest.mark.parametrize(
    "above",
    [
        (7, CODE + INDIRECT, CODE + END),  # behind a call with an unknown target
        (7, CODE + BY_STUB, CODE + END),  # behind a call of a stub with an unknown target
        (7, CODE + CALL, 5),  # the next return address is not code
        (7, CODE + CALL, CODE + END, 7, CODE + OTHER, CODE + END),  # two candidates reach the outermost frame
        (7, CODE + CALL + 1, CODE + END),  # not behind the call
        (),
    ],
)
def test_search_without_proof_keeps_stack(above):
    stack = search(*above)

    assert pcs(stack) == [0, ASLEEP]
    assert stack.stop_reason is StopReason.REGISTER_UNKNOWN


def test_search_takes_candidate_that_reaches_outermost_frame():
    stack = search(7, CODE + CALL, 5, 7, CODE + OTHER, CODE + END)

    assert pcs(stack) == [0, ASLEEP, OTHER, END]


IN_REGISTER = UnwindRow(Rule(SP, 0, deref=False), Rule(RETURN, 0, deref=False), kept=(FP,))


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({CALL: LEAF}, [ASLEEP, CALL, END]),
        ({CALL: LEAF, OTHER: LEAF}, [ASLEEP]),  # two candidates reach the outermost frame
        ({}, [ASLEEP]),
        ({CALL: IN_REGISTER}, [ASLEEP]),  # its caller lacks the same register
    ],
)
def test_search_finds_return_address_register_behind_call_of_function(known, expected):
    rows = {CODE + at: row for at, row in {ASLEEP: IN_REGISTER, END: OUTERMOST, **known}.items()}
    unwinder = Unwinder(module_map(code=code()), steppers=(RowsByPc(rows),))
    taken = snapshot(words(CODE + END), pc=CODE + ASLEEP)

    assert pcs(unwinder.search(taken, unwinder.walk(taken))) == expected


def test_search_follows_stub_through_target_memory():
    plain = module_map(code=code())
    plain.refresh()
    slots = BytesMemory(CODE + 0x700, (CODE + START).to_bytes(8, "little"))
    modules = ModuleMap(lambda: plain.mappings, plain._open_image, slots.read)
    stack = search(7, CODE + BY_STUB, CODE + END, modules=modules)

    assert pcs(stack) == [0, ASLEEP, BY_STUB, END]


@pytest.mark.parametrize("machine", ["v3", "aarch64/v3", "s390x/v3"])
def test_stub_leads_to_address_in_its_slot(machine):
    """With the first call of a stub in a program of each machine."""
    image = ElfImage((FIXTURES / machine / "target").read_bytes(), "target")
    [code] = (s for s in image.segments if s.type == PT_LOAD and s.flags & PF_X)
    place = Mapping(CODE, CODE + 0x4000, True, True, code.offset & -4096, "08:01", 7, "/bin/target", False)
    module = ModuleMap(lambda: (place,), lambda _: image).find(CODE)
    for address in range(module.address(code.vaddr) + 8, module.address(code.vaddr) + code.filesz):
        target = module.call_target(address) if module.follows_call(address) else None
        slot = module.stub_slot(target) if target else None
        if slot is not None:
            memory = BytesMemory(slot, STACK.to_bytes(8, image.byteorder))
            modules = ModuleMap(lambda: (place,), lambda _: image, memory.read)
            assert modules.call_target(address) == STACK
            return
    pytest.fail("no call of a stub")


def test_stub_slot_of_each_stub_form():
    jump = b"\xff\x25" + (0x100).to_bytes(4, "little")

    assert stub_slot(62, jump, 0x1000) == 0x1106
    assert stub_slot(62, b"\xf3\x0f\x1e\xfa" + jump, 0x1000) == 0x110A
    assert stub_slot(62, b"\xf3\x0f\x1e\xfa\xf2" + jump, 0x1000) == 0x110B
    assert stub_slot(62, b"\x90" + jump, 0x1000) is None
    assert stub_slot(183, jump, 0x1000) is None
