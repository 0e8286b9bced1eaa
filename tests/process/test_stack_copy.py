"""The stack copy, tried on the memory of the test itself."""

import ctypes
import mmap
import os
import time
from itertools import count

from sfsample.core.arch import AMD64
from sfsample.core.stack import Frame, Stack, StopReason
from sfsample.process.stack_copy import StackCopy
from tests.builders.threads import thread as new_thread

SIZE = 1 << 20
PAGE = mmap.PAGESIZE
mprotect = ctypes.CDLL(None).mprotect
mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def test_long_stack_is_copied_completely_in_pieces():
    source = ctypes.create_string_buffer(os.urandom(SIZE), SIZE)
    copy = StackCopy(os.getpid(), AMD64, lambda _: None, SIZE)
    at = (ctypes.addressof(source) + AMD64.red_zone + 7) & -8
    thread = new_thread(os.getpid())
    copy.fill(thread, at)
    start = at - AMD64.red_zone - ctypes.addressof(source)
    inside = SIZE - start
    memory, _ = copy.result(thread, at)
    assert memory.read(at - AMD64.red_zone, inside) == source.raw[start:]


def test_stack_is_copied_where_the_page_below_is_unreadable():
    """Seen with stress-ng: nothing was copied of a first thread that never used the page below its sp."""
    with mmap.mmap(-1, 3 * PAGE) as source:
        buffer = ctypes.c_char.from_buffer(source)
        at = ctypes.addressof(buffer) + PAGE
        source[PAGE:] = os.urandom(2 * PAGE)
        whole = source[PAGE:]
        assert mprotect(at - PAGE, PAGE, 0) == 0
        copy = StackCopy(os.getpid(), AMD64, lambda _: (at, at + 2 * PAGE), SIZE)
        for sp in (at, at + 8, at + AMD64.red_zone - 8):
            thread = new_thread(os.getpid())
            copy.fill(thread, sp)
            memory, bounded = copy.result(thread, sp)
            assert memory.read(at, 2 * PAGE) == whole
            assert not bounded
        del buffer


def test_copy_stops_between_two_pieces_at_the_time_limit(monkeypatch):
    """The first piece is copied without a look at the clock."""
    source = ctypes.create_string_buffer(b"x" * SIZE, SIZE)
    copy = StackCopy(os.getpid(), AMD64, lambda _: None, SIZE)
    at = ctypes.addressof(source) + AMD64.red_zone
    monkeypatch.setattr(time, "perf_counter_ns", count().__next__)
    thread = new_thread(os.getpid())
    for until_ns, pieces in ((-1, 1), (3, 4)):  # the clock shows 0, then 1, 2, 3, 4
        copy.fill(thread, at, until_ns)
        memory, bounded = copy.result(thread, at)
        start = at - AMD64.red_zone & -8
        assert memory.read(start, pieces * 128 * 1024) is not None
        assert memory.read(start, pieces * 128 * 1024 + 1) is None
        assert bounded
    assert copy.cut_short == 2
    copy.fill(thread, at)
    assert copy.cut_short == 2


def test_other_stack_without_frames_stays_while_the_walk_ends_alike():
    """Otherwise it was dropped as soon as it had been copied, and each sample was taken twice."""
    copy, thread = StackCopy(os.getpid(), AMD64, lambda _: (0x10000, 0x20000), SIZE), new_thread(1)
    first, elsewhere = (Frame(1, sp, None, "context", exact=True) for sp in (0x5000, 0x6000))
    cut_short = Stack((first,), StopReason.BAD_MEMORY, missing=0x10100)
    assert copy.learn(thread, cut_short)
    assert not copy.learn(thread, Stack((first,), StopReason.OUTERMOST))
    assert not copy.learn(thread, cut_short)
    assert not copy.learn(thread, Stack((elsewhere,), StopReason.OUTERMOST))
    assert copy.learn(thread, cut_short)
