"""Which second stack a plan copies: it depends on the stack on which the thread runs."""

import pytest

from sfsample.core.memory import BytesMemory, Span
from sfsample.runtimes.go.layout import G_BYTES, G_M, G_PC, G_SP, G_STACK_HIGH, G_STACK_LOW, layout_of
from sfsample.runtimes.go.plan import GoPlan, find_plan

LAYOUT = layout_of(24)
M, SCHEDULER, GOROUTINE = 0x1000, 0x2000, 0x3000
OWN, USER, LARGE, SIGNALS = (
    (0x100000, 0x110000),
    (0x200000, 0x208000),
    (0x300000, 0x400000),
    (0x500000, 0x508000),
)
FIELDS = GOROUTINE, G_BYTES
OLD_SP = 0x7000  # bytes from the start of a stack to the sp that the runtime has noted last
INTERRUPTED = OWN[0] + OLD_SP - 0x2000, 0xB000  # stack of the scheduler, and 8 KiB below the noted sp


class Room:
    """The copies of one pause."""

    def __init__(self, user: Span | None) -> None:
        self.words, self.copied = [0] * 4096, list[Span]()
        self.set(M, LAYOUT.m_goroutine, GOROUTINE if user else 0)
        for g, (low, high) in ((SCHEDULER, OWN), (GOROUTINE, user or (0, 0))):
            for offset, value in ((G_STACK_LOW, low), (G_STACK_HIGH, high), (G_SP, low + OLD_SP)):
                self.set(g, offset, value)

    def set(self, base: int, offset: int, value: int) -> None:
        self.words[(base + offset) // 8] = value

    def find(self, address: int, size: int) -> int:  # noqa: ARG002 - the protocol
        return address // 8

    def copy(self, address: int, size: int) -> int:
        self.copied.append((address, size))
        return address // 8


def test_a_goroutine_that_asks_the_clock_is_copied_from_that_frame_on() -> None:
    """The runtime does not note sp in the goroutine before it calls the vDSO on the scheduler's stack."""
    room, clock = Room(USER), USER[0] + 0x5000
    room.set(M, LAYOUT.m_vdso_sp, clock)
    GoPlan(LAYOUT, M, SCHEDULER, lambda *_: None, range(0)).follow(room, BytesMemory(OWN[0] + 64, b""))
    assert room.copied == [FIELDS, (clock - 64, 0x3040), FIELDS]


@pytest.mark.parametrize(
    ("sp", "user", "copied"),
    [
        # another thread may move a stack on which this thread does not run: the goroutine is copied twice
        (OWN[0] + 64, USER, [FIELDS, (USER[0] + OLD_SP, 0x1000), FIELDS]),
        (USER[0] + 64, USER, [FIELDS, (OWN[0] + OLD_SP, 0x9000)]),
        # a signal handler: the interrupted code has used more of its stack since its sp was noted
        (SIGNALS[0] + 64, USER, [FIELDS, INTERRUPTED, (USER[0], 0x8000), FIELDS]),
        (SIGNALS[0] + 64, LARGE, [FIELDS, INTERRUPTED, (LARGE[1] - 0x20000, 0x20000), FIELDS]),
        (SIGNALS[0] + 64, None, [INTERRUPTED]),  # the thread runs the scheduler
        (OWN[0] + 64, None, []),
    ],
)
def test_the_other_stack_is_copied(sp: int, user: Span | None, copied: list[Span]) -> None:
    room = Room(user)
    GoPlan(LAYOUT, M, SCHEDULER, lambda *_: None, range(0)).follow(room, BytesMemory(sp, b""))
    assert room.copied == copied


@pytest.mark.parametrize(
    ("noted", "code", "is_only", "found"),
    [
        ({SCHEDULER + G_PC: 0x800}, range(0x400, 0x900), False, True),
        ({SCHEDULER + G_PC: 0x800}, range(0x900, 0x1000), True, False),  # another runtime of the process
        ({GOROUTINE + G_PC: 0x800}, range(0x400, 0x900), False, True),  # thread of C: its g0 has no pc
        ({GOROUTINE + G_PC: 0x800}, range(0x900, 0x1000), True, False),
        ({}, range(0x400, 0x900), False, False),  # thread of C that does not run Go at the moment
        ({}, range(0x400, 0x900), True, True),
    ],
)
def test_a_plan_belongs_to_one_runtime(
    noted: dict[int, int], code: range, is_only: bool, found: bool
) -> None:
    words = {GOROUTINE + G_M: M, SCHEDULER + G_M: M, M: SCHEDULER, M + LAYOUT.m_tid: 7}
    words |= {M + LAYOUT.m_goroutine: GOROUTINE, **noted}
    read = lambda at, _: words.get(at, 0).to_bytes(8, "little")  # noqa: E731 - a short read
    plan = find_plan(LAYOUT, GOROUTINE, 7, read, code, is_only_runtime=lambda: is_only)
    assert (plan is not None) == found
