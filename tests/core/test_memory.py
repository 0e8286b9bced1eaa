"""A `Memory` returns all the bytes of a request or None, never a part."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.core.memory import BytesMemory, PiecewiseMemory

BASE = 0x7FFF_0000


def test_word_is_unsigned_and_in_byte_order():
    memory = BytesMemory(BASE, bytes(range(1, 25)))

    assert memory.word(BASE) == 0x0807060504030201
    assert memory.word(BASE + 3) == 0x0B0A090807060504  # unaligned
    assert memory.word(BASE + 16) == 0x1817161514131211
    assert BytesMemory(BASE, bytes(range(1, 9)), "big").word(BASE) == 0x0102030405060708
    assert BytesMemory(BASE, b"\xff" * 8).word(BASE) == (1 << 64) - 1  # unsigned


@pytest.mark.parametrize("offset", [-1, -8, -BASE, 17, 24, 1 << 64])
def test_word_outside_the_copy_is_none(offset):
    assert BytesMemory(BASE, bytes(24)).word(BASE + offset) is None


def test_copy_shorter_than_a_word_has_no_word():
    for size in range(8):
        assert BytesMemory(BASE, bytes(size)).word(BASE) is None


def test_read_returns_exactly_the_bytes_or_none():
    memory = BytesMemory(BASE, b"abcdef")

    assert memory.read(BASE + 1, 3) == b"bcd"
    assert memory.read(BASE, 6) == b"abcdef"
    assert memory.read(BASE + 6, 0) == b""
    for address, size in ((BASE, 7), (BASE - 1, 2), (BASE + 6, 1), (BASE, -1), (0, 1)):
        assert memory.read(address, size) is None


def test_piecewise_memory_reads_from_the_first_piece_with_all_bytes():
    memory = PiecewiseMemory(
        BytesMemory(BASE, b"a" * 8), BytesMemory(0x1000, b"b" * 16), BytesMemory(BASE, b"c" * 16)
    )

    assert memory.word(BASE) == 0x6161616161616161  # the first piece that has it
    assert memory.word(0x1008) == 0x6262626262626262
    assert memory.word(BASE + 8) == 0x6363636363636363
    assert memory.read(BASE, 8) == b"a" * 8
    assert memory.read(BASE, 9) == b"c" * 9
    assert memory.word(0x2000) is memory.read(0x2000, 1) is None
    assert PiecewiseMemory().word(BASE) is None


@given(st.binary(max_size=40), st.integers(BASE - 20, BASE + 60), st.integers(-2, 50))
def test_word_and_read_agree_with_the_bytes(data, address, size):
    memory = BytesMemory(BASE, data)
    inside = address - BASE >= 0 and size >= 0 and address - BASE + size <= len(data)
    expected = data[address - BASE :][:size] if inside else None

    assert memory.read(address, size) == expected
    eight = memory.read(address, 8)
    assert memory.word(address) == (None if eight is None else int.from_bytes(eight, "little"))
