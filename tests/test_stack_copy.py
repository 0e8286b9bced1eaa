"""Copying memory piece by piece, of this very process."""

import ctypes
import os
import time
from itertools import count

from sfsample.arch import AMD64
from sfsample.target.stack_copy import StackCopy

SIZE = 1 << 20


def test_a_long_stack_is_copied_whole_however_many_pieces_it_takes():
    source = ctypes.create_string_buffer(os.urandom(SIZE), SIZE)
    copy = StackCopy(os.getpid(), AMD64, lambda _: None, SIZE)
    at = (ctypes.addressof(source) + AMD64.red_zone + 7) & -8
    assert copy.fill(os.getpid(), at)
    start = at - AMD64.red_zone - ctypes.addressof(source)
    inside = SIZE - start
    memory = copy.memory()
    assert memory.read(at - AMD64.red_zone, inside) == source.raw[start:]


def test_a_copy_that_lasts_too_long_is_given_up_between_two_pieces(monkeypatch):
    source = ctypes.create_string_buffer(b"x" * SIZE, SIZE)
    copy = StackCopy(os.getpid(), AMD64, lambda _: None, SIZE)
    at = ctypes.addressof(source) + AMD64.red_zone
    monkeypatch.setattr(time, "perf_counter_ns", count().__next__)
    assert not copy.fill(os.getpid(), at, 2)
    memory = copy.memory()
    start = at - AMD64.red_zone & -8
    assert memory.read(start, 3 * 128 * 1024) is not None
    assert memory.read(start, 3 * 128 * 1024 + 1) is None
    assert copy.fill(os.getpid(), at)
