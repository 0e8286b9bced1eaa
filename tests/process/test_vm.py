import os
from ctypes import addressof, create_string_buffer
from functools import partial

from sfsample.core.memory import ADDRESS_SPACE, ReadMemory
from sfsample.process.vm import KeptAnswer, Pieces, read_memory

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


def test_answer_is_kept_while_memory_and_arguments_stay_the_same() -> None:
    memory, kept, pid = create_string_buffer(b"\x08........one two"), KeptAnswer[bytes | None](), os.getpid()
    begin, live, calls = addressof(memory), list[tuple[int, int]](), []

    def follow(read: ReadMemory) -> bytes | None:
        """Read a word at the address to which the first byte points."""
        calls.append(read)
        offset = (read(begin, 1) or b"")[0]
        return read(begin + 1 + offset, 3)

    def read(address: int, size: int) -> bytes | None:
        live.append((address, size))
        return read_memory(pid, address, size)

    ask = partial(kept.get, pid, function=follow, read=read)
    assert [ask(arguments=1) for _ in range(3)] == [b"one"] * 3
    assert len(calls) == 1
    memory[9:12] = b"six"
    assert ask(arguments=1) == b"six"
    assert len(live) == 2  # later reads of the same memory take one system call
    memory[0] = b"\x0c"
    assert ask(arguments=1) == b"two"
    assert live[2:] == [(begin + 13, 3)]
    memory[9:12] = b"one"  # memory on which the answer no longer depends
    assert (ask(arguments=1), len(calls)) == (b"two", 3)
    assert (ask(arguments=2), len(calls)) == (b"two", 4)


def test_answer_that_depends_on_unreadable_memory_is_not_kept() -> None:
    kept, answers = KeptAnswer[int](), iter((1, 2))
    ask = partial(kept.get, os.getpid(), None, read=partial(read_memory, os.getpid()))
    for expected in (1, 2):
        assert ask(lambda read: next(answers) + len(read(8, 8) or b"")) == expected
