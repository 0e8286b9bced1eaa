"""Names the code objects of a process, and finds out whether a known one is still the same.

A frame holds its code object only while it runs.  The program may drop the function, and another one may come
to lie at its address before it is read.  So a name is believed only if the header proves that it is that of
the pause: type, size, version, and the pointers to its texts.  A dropped one keeps that until its place is
used again, while its texts may be others already.  So texts are those that were copied in the pause, where
they were, and the reference count proves that the rest is its own, too.  A dropped one has no line.

Every address here is data of the target: what does not look like a code object has no name.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from struct import Struct

from sfsample.core.memory import BytesMemory, Memory, Span
from sfsample.python.layout import Layout, word_in
from sfsample.python.line_table import LineTable
from sfsample.python.strings import read_string

ReadMany = Callable[[Sequence[Span]], list[bytes | None]]  # of (address, size), in few calls

_MAX_KNOWN = 100_000  # code objects; when there are more, all are forgotten
_MAX_TEXT = 1 << 16  # characters of a name
_MAX_TABLE_BYTES = 1 << 18  # of a location table; a larger one gives no lines
_MAX_KNOWN_BYTES = 1 << 26  # of all of them
_MAX_UNITS = 1 << 26  # instructions of a function
_PROOFS_WITHOUT_VERSION = 16  # two functions in turn at an address look like one for so long once in 2 ** 15
_CODE_TYPE = b"code\0"
_TEXT_BYTES = 320  # of a string object, that are copied in the pause
_WORD = Struct("<Q")
_NAME_BYTES = 96  # of a string, from its length on
_NAME_HEAD = 32  # bytes before the characters of an ASCII string
_WARMUP = 44  # position in the header of 3.11


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


def header_of(layout: Layout, address: int) -> Span:
    """Return what stays the same of a code object while it lives: from its type to its last text."""
    return address + layout.type, layout.linetable + 8 - layout.type


def name_of(layout: Layout, header: bytes | None) -> Span | None:
    """Return where the qualified name of a code object begins, by its header; None: it has none."""
    at = word_in(header, layout.qualname - layout.type)
    return (at + layout.string_length, _NAME_BYTES) if at else None


def texts_of(layout: Layout, header: bytes) -> list[Span]:
    """Return where the name and the file of a code object are, by its header."""
    return [(at, _TEXT_BYTES) for at in _texts(layout, header) if at]


class CodeObjects:
    """The code objects of one process, by address.

    `trusted` are the addresses at which there never was more than one: what is there after a pause, and
    looks as before, was there in the pause.  For others the header has to be copied in the pause.  In 3.11,
    where a function that is made again looks as before, an address has to prove that some times.
    """

    def __init__(self, layout: Layout, read: ReadMany) -> None:
        self._layout, self._read = layout, read
        self._known: dict[int, Code] = {}
        self._known_bytes = 0  # of their location tables
        self._several: set[int] = set()  # addresses
        self._proofs: Counter[int] = Counter()  # that there was the same in a pause, by address
        self._needed = _PROOFS_WITHOUT_VERSION if layout.code_version is None else 1
        self.trusted: set[int] = set()
        self._type = 0  # the address of the type "code"

    def look_up(self, addresses: Sequence[int], paused: Memory | None = None) -> list[Code | None]:
        """Return the code object at each address; None: it is none, or not sure.

        `paused` may have headers as they were in the pause; without it those of now are what is asked for.
        """
        if len(self._known) > _MAX_KNOWN or self._known_bytes > _MAX_KNOWN_BYTES:
            self._known_bytes = 0
            for each in (self._known, self._several, self._proofs, self.trusted):
                each.clear()
        now = self._keys(addresses, self._read)
        then = now if paused is None else self._keys(addresses, partial(read_each, paused))
        found = [self._code(*each, paused) for each in zip(addresses, then, now, strict=True)]
        return [code or (key and paused and self._dropped(key, paused)) or None
                for code, key in zip(found, then, strict=True)]  # fmt: skip

    def _keys(self, addresses: Sequence[int], read: ReadMany) -> list[bytes | None]:
        """Return what tells the code object at each address from others.

        Since 3.12 a header has a number that no other one has.  Before, its name belongs to the key: the
        text may be another one at the same address.
        """
        layout = self._layout
        headers = read([header_of(layout, address) for address in addresses])
        if layout.code_version is not None:
            return headers
        spans = [name_of(layout, header) for header in headers]
        names = read([span or (0, 1) for span in spans])
        return [None if header is None or name is None else _without_counter(header) + _cut(name)
                for header, name in zip(headers, names, strict=True)]  # fmt: skip

    def _code(
        self, address: int, then: bytes | None, now: bytes | None, paused: Memory | None
    ) -> Code | None:
        known = self._known.get(address)
        if known is not None and known.key == (then or now):
            if then:
                self._prove(address)
            return known if then or address in self.trusted else None
        if known is not None:
            self._several.add(address)
            self.trusted.discard(address)
        return self._load(address, then, paused) if then is not None and then == now else None

    def _dropped(self, key: bytes, paused: Memory) -> Code | None:
        """Return a code object by what was copied in the pause; None: it is none, or too little was."""
        qualname, filename = (self._copied(paused, at) for at in _texts(self._layout, key))
        if not filename or not qualname or not self._is_code(word_in(key)):
            return None
        return Code(key, qualname, filename, (b"", self._first_line(key), 0))

    def _first_line(self, key: bytes) -> int:
        return int.from_bytes(key[self._layout.first_line - self._layout.type :][:4], "little", signed=True)

    def _load(self, address: int, key: bytes, paused: Memory | None) -> Code | None:
        """Read the texts of a code object; None where it is none, or changes meanwhile."""
        layout = self._layout
        units, lines = (word_in(key, at - layout.type) for at in (layout.code_size, layout.linetable))
        named, file = _texts(layout, key)
        if not 0 < units <= _MAX_UNITS or not self._is_code(word_in(key)):
            return None
        name = bytes(layout.string_length) + key[header_of(layout, address)[1] :]  # 3.11 has it in the key
        copies = BytesMemory(named, name) if paused is None else paused
        texts: tuple[str | None, str | None, bytes | None] = ("", "", b"")
        if named != file or self._first_line(key):  # the interpreter's own has one text, or none, and no line
            texts = self._text(copies, named), self._text(copies, file), self._bytes(lines)
        qualname, filename, table = texts
        if filename is None or qualname is None or table is None or not self._lives(address, key):
            return None
        code = self._known[address] = Code(key, qualname, filename, (table, self._first_line(key), units))
        self._known_bytes += len(table)
        self._prove(address)
        return code

    def _prove(self, address: int) -> None:
        """Note that what is at an address was there in the pause; some proofs make it trusted."""
        if address not in self._several and address not in self.trusted:
            self._proofs[address] += 1
            if self._proofs[address] >= self._needed:
                self.trusted.add(address)

    def _lives(self, address: int, key: bytes) -> bool:
        """Whether the code object with this key is at an address, and was not dropped."""
        [head] = self._read([(address, self._layout.type)])
        return head is not None and has_references(head) and self._keys([address], self._read) == [key]

    def _is_code(self, kind: int) -> bool:
        """Whether the type at this address is that of code objects; its name says so once."""
        if not self._type:
            [data] = self._read([(kind + self._layout.type_name, 8)])
            [name] = self._read([(_WORD.unpack(data)[0], len(_CODE_TYPE))]) if data else [None]
            self._type = kind if name == _CODE_TYPE else 0
        return kind == self._type != 0

    def _text(self, copies: Memory, address: int) -> str | None:
        """Return a string object, as it was copied or else is now; it is cut where it is very long."""
        now = partial(read_string, self._layout, lambda *span: self._read([span])[0])
        return self._copied(copies, address) or now(address, _MAX_TEXT)

    def _copied(self, copies: Memory, address: int) -> str | None:
        """Return a string object that was copied; None: it was not, or not all of it."""
        return read_string(self._layout, copies.read, address, _MAX_TEXT)

    def _bytes(self, address: int) -> bytes | None:
        """Return the content of a bytes object, b"" of a very large one."""
        [data] = self._read([(address + self._layout.bytes_size, 8)])
        size = _WORD.unpack(data)[0] if data else 0
        if size > _MAX_TABLE_BYTES:
            return b""
        return self._read([(address + self._layout.bytes_data, size)])[0] if size else None


def has_references(head: bytes) -> bool:
    """Whether an object lives, by what lies before its type; what was freed has a pointer to the next one.

    Source: Include/object.h and refcount.h: a count of 32 bits below flags; without a GIL two counts.
    """
    if len(head) > _WORD.size:
        return bool(word_in(head, 8) >> 32 or word_in(head, 16) >> 2)
    count = word_in(head)
    return count & 0xFFFFFFFF != 0 and (count >> 32) & 0xFFFF == 0


def _texts(layout: Layout, header: bytes) -> tuple[int, int]:
    """Return the addresses of the qualified name and of the file of a code object, by its header."""
    return word_in(header, layout.qualname - layout.type), word_in(header, layout.filename - layout.type)


def read_each(memory: Memory, spans: Sequence[Span]) -> list[bytes | None]:
    """Return the bytes of each span; see `ReadMany`."""
    return [memory.read(*span) for span in spans]


def _without_counter(header: bytes) -> bytes:
    """Return a header of 3.11 without `co_warmup`, which counts."""
    return header[:_WARMUP] + bytes(4) + header[_WARMUP + 4 :]


def _cut(name: bytes) -> bytes:
    """Return the head of a string object of 3.11 without what lies behind a short one."""
    return name[: _NAME_HEAD + word_in(name)]
