"""Reading goroutines ends soon, however many a process claims to have, and says how many it has read."""

from struct import pack_into

import pytest

from sfsample.core.budget import GOROUTINE_NS, GOROUTINES_NS, READ_NS, Budget
from sfsample.runtimes.go.goroutines import GoroutineReader
from sfsample.runtimes.go.layout import G_SP, G_STACK_HIGH, layout_of

LAYOUT = layout_of(24)
CLAIMED = 1 << 24  # goroutines
ARRAY = 0xC000000000
REASONS = ("", "GC assist marking")
WAITING, DEAD = 4, 6


def head(size, status, goid=7):
    data = bytearray(size)
    pack_into("<IIQ", data, LAYOUT.g_status, status, 0, goid)
    return bytes(data)


def addresses(at, size):
    return b"".join((place - ARRAY).to_bytes(8, "little") for place in range(at, at + size, 8))


class Process:
    """A process in which each address below the array has the same goroutine."""

    def __init__(self, status):
        self._status, self.calls = status, 0

    def read(self, spans):
        self.calls += 1
        return [addresses(at, size) if at >= ARRAY else head(size, self._status) for at, size in spans]


@pytest.mark.parametrize("status", [WAITING, DEAD])
def test_a_hostile_number_of_goroutines_costs_a_budget(status):
    process, budget = Process(status), Budget(GOROUTINES_NS // 100)
    reader = GoroutineReader(LAYOUT, REASONS, process.read, budget)
    found = sum(1 for _ in reader.goroutines((ARRAY, CLAIMED)))
    most = GOROUTINES_NS // 100 // READ_NS
    assert found == 0 if status == DEAD else 0 < found <= most
    assert budget.why == "there are too many"
    done, count = reader.read_of
    assert 0 < done <= most
    assert count == CLAIMED


def test_a_million_goroutines_are_within_the_budget():
    assert (GOROUTINE_NS + READ_NS) * 1_000_000 <= GOROUTINES_NS


def test_reading_ends_when_the_dump_has_no_time_left():
    process, left = Process(WAITING), iter([False] * 5)
    reader = GoroutineReader(LAYOUT, REASONS, process.read, Budget(GOROUTINES_NS, lambda: next(left, True)))
    assert len([*reader.goroutines((ARRAY, CLAIMED))]) == 4
    assert process.calls < 10
    assert reader.read_of == (0, CLAIMED)


@pytest.mark.parametrize("size", [4096, 0x12000, 0x20000, 0x20008])
def test_a_stack_is_read_whole_although_a_frame_has_a_large_buffer(size):
    """The function that reads inotify descriptors has a buffer of 64 KiB in its frame."""
    high, data = 0xC000800000, bytearray(head(512, WAITING))
    pack_into("<Q", data, G_SP, high - size)
    pack_into("<Q", data, G_STACK_HIGH, high)

    def read(spans):
        return [bytes(data[:length]) if address < ARRAY else bytes(length) for address, length in spans]

    reader = GoroutineReader(LAYOUT, REASONS, read, Budget(GOROUTINES_NS))
    [goroutine] = reader._batch([0x1000])
    assert len(goroutine.stack) == min(size, 0x20000)


def test_an_unknown_version_has_no_layout():
    assert all(layout_of(minor) is None for minor in (None, 17, 20, 28))
