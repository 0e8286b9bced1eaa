"""Encodes and decodes the wire format of protocol buffers, as far as profiles need it.

This module knows no schemas.  Readers skip 32-bit and 64-bit fields.  Damage and groups raise FormatError.

Source: https://protobuf.dev/programming-guides/encoding
"""

from collections.abc import Iterable, Iterator

from sfsample.errors import FormatError

_VARINT, _I64, _BYTES, _I32 = 0, 1, 2, 5
_FIXED = {_I64: 8, _I32: 4}
_MASK = (1 << 64) - 1


def varint(number: int) -> bytes:
    """Encode an integer.  A negative number becomes its 64-bit two's complement."""
    number &= _MASK
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, number: int) -> bytes:
    """Encode an integer field; b"" for 0, the default."""
    return varint(field << 3 | _VARINT) + varint(number) if number else b""


def fixed64(field: int, number: int) -> bytes:
    """Encode a 64-bit field without a sign."""
    return varint(field << 3 | _I64) + number.to_bytes(8, "little")


def message(field: int, *parts: bytes) -> bytes:
    """Encode a message or string field from the parts of its contents."""
    data = b"".join(parts)
    return varint(field << 3 | _BYTES) + varint(len(data)) + data


def packed(field: int, numbers: Iterable[int]) -> bytes:
    """Encode a repeated integer field, packed."""
    return message(field, *map(varint, numbers))


def read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an integer, and the offset after it.  Raises FormatError if the integer does not end."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & _MASK, at
    raise FormatError("protobuf", at, "a number does not end")


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield (field number, integer or bytes) in order.  Raises FormatError if `data` is damaged."""
    at = 0
    while at < len(data):
        start = at
        key, at = read_varint(data, at)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            number, at = read_varint(data, at)
            yield field, number
            continue
        if kind == _BYTES:
            length, at = read_varint(data, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise FormatError("protobuf", start, f"wire type {kind}")
        if not field or length > len(data) - at:
            raise FormatError("protobuf", start, f"field {field} of {length} bytes does not fit")
        if kind == _BYTES:
            yield field, data[at : at + length]
        at += length


def integers(value: int | memoryview) -> Iterator[int]:
    """Yield the numbers in one value of a repeated integer field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = read_varint(value, at)
        yield number


def signed(number: int) -> int:
    """Return the value of an int64 field, which is encoded as an unsigned number."""
    return number - (1 << 64) if number >> 63 else number
