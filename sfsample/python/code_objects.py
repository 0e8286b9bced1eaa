"""Names the code objects of a process, and finds out whether a known one is still the same.

A frame holds its code object only while it runs.  The program may drop the function, and another one may come
to lie at its address.  So what is known by address is believed only if the header still reads the same: type,
size, first line, version, and the pointers to its texts.

Every address here is data of the target: what does not look like a code object has no name, and each reading
is bounded.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from struct import Struct

from sfsample.python.layout import Layout
from sfsample.python.line_table import LineTable

ReadMany = Callable[[Sequence[tuple[int, int]]], list[bytes | None]]  # of (address, size), in few calls

_MAX_KNOWN = 100_000  # code objects; when there are more, all are forgotten
_MAX_TEXT = 1 << 16  # characters of a name
_MAX_TABLE_BYTES = 1 << 24  # of a location table
_MAX_UNITS = 1 << 26  # instructions of a function
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # by bytes of a character
_COMPACT, _ASCII = 1 << 3, 1 << 4  # behind the three bits of the kind
_CODE_TYPE = b"code\0"
_WORD = Struct("<Q")


class Code:
    """A code object whose texts have been read; `key` tells it from another one at the same address.

    One without a name is the interpreter's own, around the `__init__` of a class that is called (since 3.13).
    """

    def __init__(self, key: bytes, qualname: str, filename: str, lines: tuple[bytes, int, int]) -> None:
        self.key, self.qualname, self.filename = key, qualname, filename
        self._table, self.first_line, self.units = lines

    def line(self, unit: int) -> int | None:
        """Return the line of an instruction; None: it has none, or the table is damaged."""
        return self._lines.line(unit) if self._lines is not None else None

    @cached_property
    def _lines(self) -> LineTable | None:
        try:
            return LineTable(self._table, self.first_line, self.units)
        except ValueError:
            return None


class CodeObjects:
    """The code objects of one process, by address."""

    def __init__(self, layout: Layout, read: ReadMany) -> None:
        self._layout, self._read = layout, read
        self._known: dict[int, Code] = {}
        self._type = 0  # the address of the type "code"
        version = layout.code_version or layout.first_line
        self._ranges = [slice(layout.type, layout.type + 8), slice(layout.code_size, layout.code_size + 8),
                        slice(layout.first_line, layout.first_line + 4), slice(version, version + 4),
                        slice(layout.filename, layout.linetable + 8)]  # fmt: skip
        self._header_bytes = max(part.stop for part in self._ranges)

    def look_up(self, addresses: Sequence[int]) -> list[Code | None]:
        """Return the code object at each address, as it is now; None: there is none, or not any more."""
        if len(self._known) > _MAX_KNOWN:
            self._known.clear()
        keys = self._keys(addresses)
        found = [self._known.get(address) for address in addresses]
        return [
            code if code is not None and code.key == key else self._load(address, key)
            for address, code, key in zip(addresses, found, keys, strict=True)
        ]

    def _keys(self, addresses: Sequence[int]) -> list[bytes | None]:
        """Return what stays the same of the header at each address."""
        ranges, size = self._ranges, self._header_bytes
        return [
            None if data is None else b"".join([data[part] for part in ranges])
            for data in self._read([(address, size) for address in addresses])
        ]

    def _load(self, address: int, key: bytes | None) -> Code | None:
        """Read the texts of a code object; None where it is none, or changes meanwhile."""
        self._known.pop(address, None)
        if key is None:
            return None
        kind, units, first_line, _, *words = _KEY.unpack(key[: _KEY.size])
        if not 0 < units <= _MAX_UNITS or not self._is_code(kind):
            return None
        named, file = words[(self._layout.qualname - self._layout.filename) // 8], words[0]
        texts: tuple[str | None, str | None, bytes | None] = ("", "", b"")
        if named != file:  # of the interpreter's own they are the same text, or none
            texts = self._text(named), self._text(file), self._bytes(words[-1])
        qualname, filename, table = texts
        if filename is None or qualname is None or table is None or self._keys([address]) != [key]:
            return None
        code = self._known[address] = Code(key, qualname, filename, (table, first_line, units))
        return code

    def _is_code(self, kind: int) -> bool:
        """Whether the type at this address is that of code objects; its name says so once."""
        if not self._type:
            [data] = self._read([(kind + self._layout.type_name, 8)])
            [name] = self._read([(_WORD.unpack(data)[0], len(_CODE_TYPE))]) if data else [None]
            self._type = kind if name == _CODE_TYPE else 0
        return kind == self._type != 0

    def _text(self, address: int) -> str | None:
        """Return a string object; it is cut where it is very long."""
        at = self._layout
        [data] = self._read([(address, at.string_state + 4)])
        if data is None:
            return None
        length, state = _WORD.unpack_from(data, at.string_length)[0], int.from_bytes(data[-4:], "little")
        bits = state >> at.kind_bit
        size, start = bits & 7, at.ascii_data if bits & _ASCII else at.other_data
        if size not in _ENCODINGS or not bits & _COMPACT:
            return None
        [text] = self._read([(address + start, min(length, _MAX_TEXT) * size)]) if length else [b""]
        return None if text is None else text.decode(_ENCODINGS[size], "replace")

    def _bytes(self, address: int) -> bytes | None:
        """Return the content of a bytes object."""
        [data] = self._read([(address + self._layout.bytes_size, 8)])
        size = _WORD.unpack(data)[0] if data else 0
        if not 0 < size <= _MAX_TABLE_BYTES:
            return None
        return self._read([(address + self._layout.bytes_data, size)])[0]


_KEY = Struct("<QQiIQQQQ")  # type, units, first line, version, and the pointers from filename to linetable
