"""Finds the names of the code objects of a process, and checks that a cached name is still right.

A frame keeps its code object alive only while the frame runs.  After the pause the program may free the code
object, and a new code object may get the same address before sfsample reads it.  So sfsample believes a name
only if the header is the same as in the pause.  The header has type, size, version, and pointers to strings.

A freed code object keeps its header until its memory is reused, but its strings may already be gone.  So
sfsample prefers the strings that it copied in the pause.  For a string that sfsample reads later, the
reference count must prove that the code object was not freed.  The frame of a freed code object has no line.

Every address comes from the target's memory.  If no code object seems to be there, the frame has no name.

Source: Include/cpython/code.h and Include/cpython/unicodeobject.h of CPython 3.11 to 3.15.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cached_property, partial
from struct import Struct

from sfsample.core.memory import BytesMemory, Memory, ReadMany, ReadMemory, Span, word_in
from sfsample.runtimes.cpython.layout import Layout
from sfsample.runtimes.cpython.line_table import decode

_MAX_KNOWN = 100_000  # code objects in the cache; a larger cache is cleared
_MAX_TEXT = 1 << 16  # characters of a name
_MAX_TABLE_BYTES = 1 << 18  # bytes of a location table; sfsample does not read larger tables
_MAX_KNOWN_BYTES = 1 << 26  # bytes of all location tables in the cache
_MAX_UNITS = 1 << 26  # instructions of a function
# Pauses that must show the same code object.  If two code objects use an address by turns, the probability
# that all these pauses show the same code object is 1 in 2 ** 15.
_PROOFS_WITHOUT_VERSION, _SEVERAL = 16, -(1 << 60)
_CODE_TYPE = b"code\0"
_TEXT_BYTES = 320  # bytes of a string object that are copied in the pause
_WORD = Struct("<Q")
_NAME_BYTES = 96  # bytes of a string object, from its length field on
_NAME_HEAD = 32  # bytes from the length field to the characters of an ASCII string
_COMPACT, _ASCII = 1 << 3, 1 << 4  # flags of a string, above the three bits of its kind
_ENCODINGS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}  # encoding by bytes of a character
_WARMUP = 44  # offset of `co_warmup` in the header of 3.11, in bytes


class Code:
    """A code object with its strings.  A later code object at the same address has a different `key`.

    Since 3.13 the interpreter has a code object without a name, which calls the `__init__` of a class.
    """

    def __init__(self, key: bytes, qualname: str, filename: str, lines: tuple[bytes, int, int]) -> None:
        self.key, self.qualname, self.filename = key, qualname, filename
        self._table, self.first_line, self.units = lines

    def line(self, unit: int) -> int | None:
        """Return the line of instruction `unit` (-1: the line of the definition); None: no line."""
        if unit == -1:
            return self.first_line
        ends, lines = self._lines
        at = bisect_right(ends, unit)
        return lines[at] if unit >= 0 and at < len(lines) else None

    @cached_property
    def _lines(self) -> tuple[list[int], list[int | None]]:
        try:
            return decode(self._table, self.first_line, self.units)
        except ValueError:
            return [], []


def header_of(layout: Layout, address: int) -> Span:
    """Return the span of the header, from `ob_type` to `co_linetable`; only its `co_warmup` may change."""
    return address + layout.type, layout.linetable + 8 - layout.type


def texts_of(layout: Layout, header: bytes) -> list[Span]:
    """Return the spans of the name and of the file name of a code object, by its header."""
    return [(at, _TEXT_BYTES) for at in _texts(layout, header) if at]


class CodeObjects:
    """The code objects of one process, by address.

    `trusted` has the addresses at which sfsample has seen only one code object.  If this code object is there
    after a pause, it was also there in the pause.  For other addresses, a pause must copy the header.
    In 3.11 a new code object can have the header of a freed code object.  So sfsample trusts an address only
    after several pauses with the same code object.
    """

    def __init__(self, layout: Layout, read: ReadMany) -> None:
        self._layout, self._read = layout, read
        self._known: dict[int, Code] = {}
        self._known_bytes = 0  # bytes of the location tables in `_known`
        # pauses that showed the same code object, by address; _SEVERAL: pauses showed several code objects
        self._proofs: Counter[int] = Counter()
        self._needed = _PROOFS_WITHOUT_VERSION if layout.code_version is None else 1
        self.trusted: set[int] = set()
        self._type = 0  # address of the type "code"; 0: not known yet

    def look_up(self, addresses: Sequence[int], paused: Memory | None = None) -> list[Code | None]:
        """Return the code object at each address; None: no code object, or sfsample cannot be sure.

        `paused` may have the headers of the pause.  Without `paused`, the current code objects are returned.
        """
        if len(self._known) > _MAX_KNOWN or self._known_bytes > _MAX_KNOWN_BYTES:
            self._known_bytes = 0
            for cache in (self._known, self._proofs, self.trusted):
                cache.clear()
        now = self._keys(addresses, self._read)
        then: list[bytes | None] = now
        if paused is not None:  # a pause copies no header of a trusted code object
            are_trusted = self.trusted.issuperset(addresses)
            then = [None] * len(now) if are_trusted else self._keys(addresses, partial(read_each, paused))
        return [self._code(*keys, paused) for keys in zip(addresses, then, now, strict=True)]

    def _keys(self, addresses: Sequence[int], read: ReadMany) -> list[bytes | None]:
        """Return the key of the code object at each address; two code objects have different keys.

        Since 3.12 the header of each code object has its own number (`co_version`).  In 3.11 the key also
        has the characters of the name, because a new string may get the address of a freed string.
        """
        layout = self._layout
        headers = read([header_of(layout, address) for address in addresses])
        if layout.code_version is not None:
            return headers
        texts = (word_in(header, layout.qualname - layout.type) for header in headers)  # 0: no name
        names = read([(text + layout.string_length, _NAME_BYTES) if text else (0, 1) for text in texts])
        # In the key, `co_warmup` (a counter) is zero.  The key ends with the last character of the name.
        return [None if header is None or name is None
                else header[:_WARMUP] + bytes(4) + header[_WARMUP + 4 :] + name[: _NAME_HEAD + word_in(name)]
                for header, name in zip(headers, names, strict=True)]  # fmt: skip

    def _code(
        self, address: int, then: bytes | None, now: bytes | None, paused: Memory | None
    ) -> Code | None:
        cached = self._known.get(address)
        if cached is not None and cached.key == (then or now):
            if then:
                self._prove(address)
            return cached if then or address in self.trusted else None
        if cached is not None:
            self._proofs[address] = _SEVERAL
            self.trusted.discard(address)
        code = self._load(address, then, paused) if then is not None and then == now else None
        return code or (self._dropped(then, paused) if then and paused else None)

    def _dropped(self, key: bytes, paused: Memory) -> Code | None:
        """Return a freed code object from the copies of the pause; None: a string was not copied."""
        qualname, filename = (read_string(self._layout, paused.read, at, _MAX_TEXT)
                              for at in _texts(self._layout, key))  # fmt: skip
        if not filename or not qualname or not self._is_code(word_in(key)):
            return None
        return Code(key, qualname, filename, (b"", self._first_line(key), 0))

    def _first_line(self, key: bytes) -> int:
        return int.from_bytes(key[self._layout.first_line - self._layout.type :][:4], "little", signed=True)

    def _load(self, address: int, key: bytes, paused: Memory | None) -> Code | None:
        """Read a code object and its strings; None: no code object, or it changes during the reading."""
        layout = self._layout
        units, lines = (word_in(key, at - layout.type) for at in (layout.code_size, layout.linetable))
        named, file = _texts(layout, key)
        if not 0 < units <= _MAX_UNITS or not self._is_code(word_in(key)):
            return None
        name = bytes(layout.string_length) + key[header_of(layout, address)[1] :]  # the name in a key of 3.11
        copies = BytesMemory(named, name) if paused is None else paused
        texts: tuple[str | None, str | None, bytes | None] = ("", "", b"")
        # The interpreter's own code object has no line, and one string (or no string) as name and as file.
        if named != file or self._first_line(key):
            texts = self._text(copies, named), self._text(copies, file), self._bytes(lines)
        qualname, filename, table = texts
        if filename is None or qualname is None or table is None or not self._lives(address, key):
            return None
        code = self._known[address] = Code(key, qualname, filename, (table, self._first_line(key), units))
        self._known_bytes += len(table)
        self._prove(address)
        return code

    def _prove(self, address: int) -> None:
        """Count a pause that showed the code object at an address; after enough pauses, trust the address."""
        self._proofs[address] += 1
        if self._proofs[address] >= self._needed:
            self.trusted.add(address)

    def _lives(self, address: int, key: bytes) -> bool:
        """Return True if the code object with this key is at an address and has not been freed."""
        [head] = self._read([(address, self._layout.type)])
        return head is not None and has_references(head) and self._keys([address], self._read) == [key]

    def _is_code(self, kind: int) -> bool:
        """Return True if `kind` is the address of the type "code", which is found once by its name."""
        if not self._type:
            [data] = self._read([(kind + self._layout.type_name, 8)])
            [name] = self._read([(_WORD.unpack(data)[0], len(_CODE_TYPE))]) if data else [None]
            self._type = kind if name == _CODE_TYPE else 0
        return kind == self._type != 0

    def _text(self, copies: Memory, address: int) -> str | None:
        """Return the copied text of a string object, else its current text; a very long text is cut."""
        copied = read_string(self._layout, copies.read, address, _MAX_TEXT)
        return copied or read_string(self._layout, lambda *span: self._read([span])[0], address, _MAX_TEXT)

    def _bytes(self, address: int) -> bytes | None:
        """Return the content of a bytes object; b"" if it is very large."""
        [data] = self._read([(address + self._layout.bytes_size, 8)])
        size = _WORD.unpack(data)[0] if data else 0
        if size > _MAX_TABLE_BYTES:
            return b""
        return self._read([(address + self._layout.bytes_data, size)])[0] if size else None


def read_string(layout: Layout, read: ReadMemory, address: int, most: int) -> str | None:
    """Return the first `most` characters of a string object; None: no string, or unreadable."""
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


def has_references(head: bytes) -> bool:
    """Return True if an object is alive.  `head`: bytes before its type; a freed object has a pointer there.

    Source: Include/object.h and refcount.h.  With a GIL an object has one count, in 32 bits; above are
    flags.  Without a GIL, an object has two counts.
    """
    if len(head) > _WORD.size:
        return bool(word_in(head, 8) >> 32 or word_in(head, 16) >> 2)
    count = word_in(head)
    return count & 0xFFFFFFFF != 0 and (count >> 32) & 0xFFFF == 0


def _texts(layout: Layout, header: bytes) -> tuple[int, int]:
    return word_in(header, layout.qualname - layout.type), word_in(header, layout.filename - layout.type)


def read_each(memory: Memory, spans: Sequence[Span]) -> list[bytes | None]:
    """Return the bytes of each span; see `ReadMany`."""
    return [memory.read(*span) for span in spans]
