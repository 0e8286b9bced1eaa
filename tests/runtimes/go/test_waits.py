"""Which words on the stack of a goroutine lead to the object that it waits for."""

from struct import pack_into

import pytest

from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.runtimes.go.layout import NO_WAIT, Goroutine, GoWait, layout_of
from sfsample.runtimes.go.waits import WaitReader

G, SP, POLL = 0xC000100000, 0xC000200000, 0x7F0000001000
STACK_BYTES = 256
FD = 5


@pytest.mark.parametrize(("pointer", "wait"), [(POLL, GoWait(fd=FD)), (SP + 64, NO_WAIT)])
@pytest.mark.parametrize("minor", [19, 24, 27])
def test_a_descriptor_is_found_outside_the_stack_only(minor, pointer, wait):
    """The registers that a function saves on the stack may look like the fields of a pollDesc."""
    layout = layout_of(minor)
    stack, descriptor = bytearray(STACK_BYTES), bytearray(64)
    pack_into("<Q", stack, 16, pointer)
    for data, at in ((stack, 64), (descriptor, 0)):
        pack_into("<Q", data, at + 8, FD)
        pack_into("<Q", data, at + layout.poll_waiters, G)
    memory = PiecewiseMemory(BytesMemory(SP, bytes(stack)), BytesMemory(POLL, bytes(descriptor)))
    goroutine = Goroutine(G, 7, "IO wait", 0, 1, 0, 0, 1, SP, 0, SP + STACK_BYTES, 0, 0, 0, b"", bytes(stack))
    reader = WaitReader(layout, lambda spans: [memory.read(*span) for span in spans])
    assert reader.waits([goroutine]).get(G, NO_WAIT) == wait


@pytest.mark.parametrize("count", [1, 20, 64])
def test_all_channels_of_a_select_are_found(count):
    layout = layout_of(24)
    sudogs = [bytearray(96) for _ in range(count)]
    places = [0xC000300000 + 96 * index for index in range(count)]
    for data, channel, link in zip(sudogs, range(count), (*places[1:], 0), strict=True):
        pack_into("<Q", data, 0, G)
        pack_into("<Q", data, layout.sudog_link, link)
        pack_into("<Q", data, layout.sudog_link + 16, 0x1000 + channel)
    memory = PiecewiseMemory(*(BytesMemory(at, bytes(data)) for at, data in zip(places, sudogs, strict=True)))
    goroutine = Goroutine(G, 7, "select", 0, 1, 0, 0, 1, SP, 0, SP, 0, places[0], 0, b"")
    found = WaitReader(layout, lambda spans: [memory.read(*span) for span in spans]).waits([goroutine])
    assert found == {G: GoWait(tuple(range(0x1000, 0x1000 + count)))}
