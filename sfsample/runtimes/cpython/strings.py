"""Reads the characters of a string object of CPython from outside.

Source: Include/cpython/unicodeobject.h of CPython 3.11 to 3.15.
"""

from sfsample.runtimes.cpython.find import ReadMemory
from sfsample.runtimes.cpython.layout import Layout, word_in

_COMPACT, _ASCII = 1 << 3, 1 << 4  # flags above the three bits of the kind
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # encoding by bytes of a character


def read_string(layout: Layout, read: ReadMemory, address: int, most: int) -> str | None:
    """Return the first `most` characters of a string object; None: it is no string, or cannot be read."""
    data = read(address, layout.string_state + 4)
    if data is None:
        return None
    length = min(word_in(data, layout.string_length), most)
    bits = int.from_bytes(data[-4:], "little") >> layout.kind_bit
    size, start = bits & 7, layout.ascii_data if bits & _ASCII else layout.other_data
    if size not in _ENCODINGS or not bits & _COMPACT:
        return None
    text = read(address + start, length * size) if length else b""
    return None if text is None else text.decode(_ENCODINGS[size], "replace")
