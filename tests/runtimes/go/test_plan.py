"""Which second stack a plan copies: it depends on the stack on which the thread runs."""

import pytest

from sfsample.core.memory import BytesMemory, Span
from sfsample.runtimes.go.layout import G_BYTES, G_SP, G_STACK_HIGH, G_STACK_LOW, layout_of
from sfsample.runtimes.go.plan import GoPlan

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


class Room:
    """The copies of one pause."""

    def __init__(self, user: Span) -> None:
        self.words, self.copied = [0] * 4096, list[Span]()
        self._set(M, LAYOUT.m_goroutine, GOROUTINE)
        for g, (low, high) in ((SCHEDULER, OWN), (GOROUTINE, user)):
            for offset, value in ((G_STACK_LOW, low), (G_STACK_HIGH, high), (G_SP, low + OLD_SP)):
                self._set(g, offset, value)

    def _set(self, base: int, offset: int, value: int) -> None:
        self.words[(base + offset) // 8] = value

    def find(self, address: int, size: int) -> int:  # noqa: ARG002 - the protocol
        return address // 8

    def copy(self, address: int, size: int) -> int:
        self.copied.append((address, size))
        return address // 8


@pytest.mark.parametrize(
    ("sp", "user", "copied"),
    [
        # another thread may move a stack on which this thread does not run: the goroutine is copied twice
        (OWN[0] + 64, USER, [FIELDS, (USER[0] + OLD_SP, 0x1000), FIELDS]),
        (USER[0] + 64, USER, [FIELDS, (OWN[0] + OLD_SP, 0x9000)]),
        # a signal handler: the interrupted goroutine has used more of its stack since its sp was noted
        (SIGNALS[0] + 64, USER, [FIELDS, (USER[0], 0x8000), FIELDS]),
        (SIGNALS[0] + 64, LARGE, [FIELDS, (LARGE[1] - 0x10000, 0x10000), FIELDS]),
    ],
)
def test_the_other_stack_is_copied(sp: int, user: Span, copied: list[Span]) -> None:
    room = Room(user)
    GoPlan(LAYOUT, M, SCHEDULER, lambda *_: None).follow(room, BytesMemory(sp, b""))
    assert room.copied == copied
