import os
from ctypes import addressof, create_string_buffer

from sfsample.core.memory import ADDRESS_SPACE
from sfsample.process.vm import Pieces, read_memory

TEXT = create_string_buffer(b"target")
AT = addressof(TEXT)


def test_read_memory_returns_all_bytes_or_none() -> None:
    assert read_memory(os.getpid(), AT, 6) == b"target"
    assert read_memory(os.getpid(), AT, 0) is None
    odd = (0, -1, -AT, ADDRESS_SPACE, ADDRESS_SPACE - 1, 1 << 63)
    assert [read_memory(os.getpid(), address, 8) for address in odd] == [None] * len(odd)


def test_pieces_are_read_together_or_not_at_all() -> None:
    pieces = [(AT + at, 1) for at in range(6)] * 400  # more pieces than one call can read
    assert b"".join(map(bytes, Pieces(pieces).read_each(os.getpid()) or [])) == b"target" * 400
    for odd in (-1, ADDRESS_SPACE - 1):
        assert Pieces([*pieces, (odd, 1)]).read_each(os.getpid()) is None
