"""Pieces beside a stack are copied in one call; what cannot be read costs its group, and nothing else."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterator

import pytest

from sfsample.core.memory import BytesMemory, Span
from sfsample.process.beside import Beside, Room
from sfsample.process.vm import CopyBuffer

PAGE = mmap.PAGESIZE
PID = os.getpid()
NEVER_NS = 1 << 63


class Area:
    """Pages of this process, each of which has its number in all bytes; some are taken away."""

    def __init__(self, pages: int) -> None:
        self._map = mmap.mmap(-1, pages * PAGE)
        for number in range(pages):
            self._map[number * PAGE : (number + 1) * PAGE] = bytes([number + 1]) * PAGE
        self.begin = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def page(self, number: int, size: int = 64) -> Span:
        return self.begin + number * PAGE, size

    def forbid(self, number: int) -> None:
        """Make a page unreadable."""
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(self.begin + number * PAGE, PAGE, 0) == 0


class GivenPlan:
    """Copies what it was given, and then what `further` asks for."""

    def __init__(self, *groups: tuple[Span, ...], further: Callable[[Room], object] = bool) -> None:
        self.groups = groups
        self._further = further

    def follow(self, room: Room, _stack: BytesMemory) -> None:
        self._further(room)


@pytest.fixture
def area() -> Iterator[Area]:
    yield Area(8)  # noqa: PT022 - it lives as long as the test


def copied(area: Area, plan: GivenPlan) -> tuple[int | None, bytes, Callable[[int], bytes | None]]:
    """Copy a plan with page 7 as the stack; return what came of the stack, and how to read a piece."""
    room, buffer = Room(), CopyBuffer(32)
    beside = Beside(plan, room, "little")
    got = beside.fill(PID, buffer, *area.page(7, 32))
    beside.follow(BytesMemory(0, b""), NEVER_NS)
    result = beside.result()
    assert result is not None
    return got, bytes(buffer.bytes), lambda number: result.read(*area.page(number))


def test_pieces_and_stack_come_together(area):
    got, stack, read = copied(area, GivenPlan((area.page(0), area.page(1, 256)), (area.page(2),)))
    assert (got, stack) == (32, bytes([8]) * 32)
    assert [read(number) for number in (0, 1, 2)] == [bytes([number]) * 64 for number in (1, 2, 3)]
    assert read(3) is None


@pytest.mark.parametrize(
    ("gone", "left"), [(0, {3, 4, 5}), (1, {0, 3, 4, 5}), (3, {0, 1, 2}), (5, {0, 1, 2, 3, 4})]
)
def test_unreadable_piece_costs_those_behind_it_in_its_group(area, gone, left):
    area.forbid(gone)
    plan = GivenPlan(tuple(map(area.page, (0, 1, 2))), tuple(map(area.page, (3, 4, 5))))
    got, stack, read = copied(area, plan)
    assert (got, stack) == (32, bytes([8]) * 32)
    assert {number for number in range(6) if read(number)} == left


def test_stack_that_cannot_be_read_costs_no_piece(area):
    area.forbid(7)
    got, _, read = copied(area, GivenPlan((area.page(0), area.page(1))))
    assert (got, read(1)) == (0, bytes([2]) * 64)


def test_too_many_holes_end_the_copy(area):
    for number in range(7):
        area.forbid(number)
    got, _, read = copied(area, GivenPlan(*((area.page(number),) for number in range(7))))
    assert (got, read(0)) == (None, None)


def test_what_was_not_foreseen_is_copied_too(area):
    area.forbid(3)
    places = []

    def further(room: Room) -> None:
        places.extend(room.copy(*area.page(number)) for number in (1, 3))
        room.copy_all([area.page(2), area.page(3), area.page(4), (1 << 63, 8), ((1 << 64) - 8, 8)])
        places.extend(room.find(*area.page(number)) for number in (1, 2, 3, 4))
        places.append(room.words[places[0]])

    _, _, read = copied(area, GivenPlan((area.page(0),), further=further))
    assert [place >= 0 for place in places[:6]] == [True, False, True, True, False, True]
    assert places[6] == int.from_bytes(bytes([2]) * 8, "little")
    assert [read(number) for number in (1, 2, 3, 4)] == [
        bytes([2]) * 64,
        bytes([3]) * 64,
        None,
        bytes([5]) * 64,
    ]


def test_nothing_is_followed_when_the_time_is_over(area):
    places = []
    room, buffer = Room(), CopyBuffer(32)
    plan = GivenPlan((area.page(0),), further=lambda room: places.append(room.copy(*area.page(1))))
    beside = Beside(plan, room, "little")
    beside.fill(PID, buffer, *area.page(7, 32))
    beside.follow(BytesMemory(0, b""), 0)
    assert places == [-1]


def test_the_next_copy_does_not_change_a_result(area):
    room, buffer = Room(), CopyBuffer(32)
    first, second = (Beside(GivenPlan((area.page(number),)), room, "little") for number in (0, 1))
    first.fill(PID, buffer, *area.page(7, 32))
    result = first.result()
    second.fill(PID, buffer, *area.page(7, 32))
    assert result is not None
    assert result.read(*area.page(0)) == bytes([1]) * 64
    assert first.result() is None


def test_late_thread_is_not_read_any_further(area):
    room, buffer = Room(), CopyBuffer(32)
    plan = GivenPlan((area.page(0),), further=lambda room: room.copy_all([area.page(1)]))
    beside = Beside(plan, room, "little")
    beside.fill(PID, buffer, *area.page(7, 32))
    beside.follow(BytesMemory(0, b""), 0)
    result = beside.result()
    assert result is not None
    assert result.read(*area.page(1)) is None
