"""Reads simple objects of CPython from outside: names of types, texts, numbers, attributes, locals, `with`.

Every address is data of the target: each read and each loop is bounded, and what does not fit is 0 or None.
Only what the table of offsets leaves out is stated here; it is the same in 3.11 to 3.15 with a GIL, but for
what `minor` decides.  Builds without a GIL have other headers, and no objects here.

Source: Include/cpython and Include/internal of CPython 3.11 to 3.15: dictobject.h, pycore_dict.h, object.h,
longintrepr.h, genobject.h, methodobject.h, code.h; Objects/exception_handling_notes.txt.
"""

from collections.abc import Iterator
from struct import Struct, unpack

from sfsample.python.chain import PythonFrame
from sfsample.python.find import ReadMemory
from sfsample.python.layout import Layout, word_in

_TAGS = 0b11  # of a reference on the value stack, from 3.14 on
_TYPE_FLAGS, _TYPE_BASICSIZE, _TYPE_DICTOFFSET = 168, 32, 288
_CACHED_KEYS = {11: 872, 15: 888}  # ht_cached_keys, where it is not at 880
_INLINE_VALUES, _MANAGED_DICT = 1 << 2, 1 << 4  # Py_TPFLAGS_...
_DICT_KEYS, _DICT_VALUES = 32, 40
_KEYS_HEADER = Struct("<8xBBBxIqq")  # of PyDictKeysObject: two sizes, kind, version, usable, entries
_GENERAL_KEYS = 0  # entries with a hash
_ASCII, _COMPACT = 1 << 4, 1 << 3
_WIDTHS = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
_FLOAT = Struct("<d")
_CODE_EXCEPTIONS = 40  # co_exceptiontable

_MAX_READS = 500_000  # at one look
_MAX_ADDRESS = 1 << 63
_MAX_WORDS = 4096  # of a dict, or of items, that are read at once
_MAX_INDEX_BITS = 16  # of the size of a dict's index
_MAX_NAME = 100  # bytes of the name of a type
_MAX_SLOTS = 512  # of a frame
_MAX_ITEMS = 1000  # of a tuple, list or set
_MAX_DIGITS = 10  # of 30 bits, of an integer that is shown
_MAX_TEXT = 80  # characters of a text that is shown
_MAX_TABLE_BYTES = 1 << 16  # of exceptions
_MAX_KNOWN = 100_000  # texts


class Objects:
    """The objects of one process.  `read` reads its memory now."""

    def __init__(self, layout: Layout, read: ReadMemory) -> None:
        self.layout, self._target = layout, read
        self._left = _MAX_READS
        self._shapes: dict[int, tuple[int, int]] = {}  # of code objects: variables, and room for values
        self._depths: dict[tuple[int, int], int] = {}  # of code objects, at instructions
        self._texts: dict[int, str] = {}  # of keys and of types, which are seldom freed

    def _read(self, address: int, size: int) -> bytes | None:
        """Return memory; None: it cannot be read, or so much has been read that the target leads astray."""
        self._left -= 1
        return self._target(address, size) if self._left > 0 and 0 < address < _MAX_ADDRESS else None

    def word(self, address: int) -> int:
        """Return the word at an address; 0: it cannot be read."""
        return word_in(self._read(address, 8))

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return words; none where they cannot be read."""
        data = self._read(address, 8 * count) if 0 < count <= _MAX_WORDS else None
        return unpack(f"<{count}Q", data) if data else ()

    def type_name(self, address: int) -> str:
        """Return the name of an object's type ("_thread.RLock"; of a class in Python "Thread"); "": none."""
        kind = self.word(address + self.layout.type)
        if kind not in self._texts:
            self._remember(kind, self.c_string(self.word(kind + self.layout.type_name)))
        return self._texts[kind]

    def c_string(self, address: int) -> str:
        """Return a short text that ends with a zero byte; "": there is none."""
        room = 4096 - address % 4096  # of the page
        data = self._read(address, min(_MAX_NAME, room)) or b""
        text, end, _ = data.partition(b"\0")
        return text.decode("utf-8", "replace") if end else ""

    def text(self, address: int, most: int = _MAX_NAME) -> str | None:
        """Return the first characters of a string object; None: it is none."""
        at = self.layout
        data = self._read(address, at.string_state + 4)
        if data is None or self.type_name(address) != "str":
            return None
        bits = int.from_bytes(data[-4:], "little") >> at.kind_bit
        size, start = bits & 7, at.ascii_data if bits & _ASCII else at.other_data
        length = min(word_in(data, at.string_length), most)
        if size not in _WIDTHS or not bits & _COMPACT:
            return None
        raw = self._read(address + start, length * size) if length else b""
        return None if raw is None else raw.decode(_WIDTHS[size], "replace")

    def integer(self, address: int) -> int | None:
        """Return an int or bool; None: it is none, or a very large one."""
        if self.type_name(address) not in ("int", "bool"):
            return None
        size = self.word(address + self.layout.bytes_size)
        if self.layout.minor == 11:
            digits, negative = min(size, (1 << 64) - size), size >> 63
        else:
            digits, negative = size >> 3, size & 3 == 2
        data = self._read(address + self.layout.bytes_size + 8, 4 * min(digits, _MAX_DIGITS + 1))
        if not digits or data is None or digits > _MAX_DIGITS:
            return None if digits else 0
        value = sum(int(digit) << 30 * place for place, digit in enumerate(unpack(f"<{digits}I", data)))
        return -value if negative else value

    def items(self, address: int) -> tuple[int, ...]:
        """Return the first items of a list or tuple."""
        count = min(self.word(address + self.layout.bytes_size), _MAX_ITEMS)
        at = address + self.layout.bytes_size + 8
        is_list = self.type_name(address) == "list"
        return self.words(self.word(at) if is_list else at + 8 * (self.layout.minor >= 14), count)

    def attribute(self, address: int, name: str) -> int:
        """Return the address of an attribute that an instance of a Python class, or a module, has itself."""
        kind = self.word(address + self.layout.type)
        flags, minor = self.word(kind + _TYPE_FLAGS), self.layout.minor
        cached = self.word(kind + _CACHED_KEYS.get(minor, 880))
        offset = self.word(kind + _TYPE_DICTOFFSET)
        if not flags & _MANAGED_DICT:
            return self.item(self.word(address + offset), name) if 0 < offset < 1 << 20 else 0
        own = self.word(address - 24)
        if minor == 11 and (values := self.word(address - 32)):
            return self._in_keys(cached, values, name)
        if minor == 12 and own & 1:
            return self._in_keys(cached, own + 1, name)
        if minor > 12 and not own and flags & _INLINE_VALUES:
            return self._in_keys(cached, address + self.word(kind + _TYPE_BASICSIZE) + 8, name)
        return self.item(own, name)

    def item(self, address: int, name: str) -> int:
        """Return the address of the value that a dict has for a name; 0: none."""
        values = self.word(address + _DICT_VALUES)
        if values and self.layout.minor >= 13:
            values += 8
        return self._in_keys(self.word(address + _DICT_KEYS), values, name)

    def _in_keys(self, keys: int, values: int, name: str) -> int:
        header = self._read(keys, _KEYS_HEADER.size)
        if header is None:
            return 0
        _, index_bytes, kind, _, _, count = _KEYS_HEADER.unpack(header)
        if not 0 < count <= _MAX_WORDS or index_bytes > _MAX_INDEX_BITS:
            return 0
        width = 3 if kind == _GENERAL_KEYS else 2
        entries = self.words(keys + 32 + (1 << index_bytes), count * width)
        for place, key in enumerate(entries[width - 2 :: width]):
            if self._key(key) == name:
                return self.word(values + 8 * place) if values else entries[place * width + width - 1]
        return 0

    def _key(self, address: int) -> str:
        if address not in self._texts:
            self._remember(address, self.text(address) or "")
        return self._texts[address]

    def _remember(self, address: int, text: str) -> None:
        if len(self._texts) >= _MAX_KNOWN:
            self._texts.clear()
        self._texts[address] = text

    # -- frames

    def slots(self, frame: PythonFrame) -> tuple[int, ...]:
        """Return the objects of a frame: locals, cells, and its value stack, which may have old entries."""
        count = min(sum(self._shape(frame.code)), _MAX_SLOTS)
        words = self.words(frame.address + self.layout.frame_bytes, count)
        return tuple(0 if word & _TAGS == _TAGS else word & ~_TAGS for word in words)

    def variables(self, frame: PythonFrame) -> int:
        """Return how many slots of a frame are locals and cells; behind them is its value stack."""
        return self._shape(frame.code)[0]

    def _shape(self, code: int) -> tuple[int, int]:
        if code not in self._shapes:
            at = code + self.layout.first_line
            self._shapes[code] = self.word(at + 4) & 0xFFFFFFFF, self.word(at - 4) & 0xFFFFFFFF
        return self._shapes[code]

    def local_names(self, frame: PythonFrame) -> tuple[str, ...]:
        """Return the names of the first slots of a frame."""
        names = self.items(self.word(frame.code + self.layout.filename - 16))
        return tuple(map(self._key, names))

    def local(self, frame: PythonFrame, name: str) -> int:
        """Return the address of a local; 0: it has none of this name, or no value."""
        return dict(zip(self.local_names(frame), self.slots(frame), strict=False)).get(name, 0)

    def reprs(self, frame: PythonFrame) -> Iterator[tuple[str, str]]:
        """Yield the names and short texts of the arguments and locals that have a value."""
        for name, slot in zip(self.local_names(frame), self.slots(frame), strict=False):
            is_cell = slot and self.type_name(slot) == "cell"
            address = self.word(slot + self.layout.bytes_size) if is_cell else slot
            if address and name:
                yield name, self.repr(address)

    def repr(self, address: int) -> str:
        """Return a short text: the value of a simple type, or what it is: "<list of 3>"."""
        kind, at = self.type_name(address), self.layout.bytes_size
        size = self.word(address + at)
        match kind:
            case "NoneType":
                return "None"
            case "bool":
                return str(bool(self.integer(address)))
            case "int":
                return f"{'<large int>' if (value := self.integer(address)) is None else value}"
            case "float":
                data = self._read(address + at, 8)
                return str(_FLOAT.unpack(data)[0]) if data else "<float>"
            case "str":
                text = self.text(address, _MAX_TEXT + 1)
                return "<str>" if text is None else _cut(text)
            case "bytes":
                raw = self._read(address + self.layout.bytes_data, min(size, _MAX_TEXT + 1)) if size else b""
                return "<bytes>" if raw is None else _cut(raw)
            case "list" | "tuple" | "dict":
                return f"<{kind} of {size}>"
            case "set" | "frozenset":
                return f"<{kind} of {self.word(address + at + 8)}>"
        return f"<{kind or '?'}>"

    def entered(self, frame: PythonFrame) -> Iterator[int]:
        """Yield the objects written in C that a frame is inside a `with` of, as its exception table says."""
        count, depth = self.variables(frame), self._depth(frame)
        stack = self.slots(frame)[count : count + depth] if depth else ()
        before: str | None = ""
        for slot in filter(None, stack):
            kind = self.type_name(slot)
            method = self.word(slot + 16)
            if kind == "builtin_function_or_method" and self.c_string(self.word(method)) == "__exit__":
                yield self.word(slot + 24)
            elif before == "__exit__":  # 3.14: function and self
                yield slot
            before = self.text(self.word(slot + 24)) if kind == "method_descriptor" else ""

    def _depth(self, frame: PythonFrame) -> int:
        """Return how many entries of the value stack are certainly in use."""
        key = frame.code, frame.instruction
        if key not in self._depths:
            self._depths[key] = self._read_depth(frame)
        return self._depths[key]

    def _read_depth(self, frame: PythonFrame) -> int:
        table = self.word(frame.code + _CODE_EXCEPTIONS)
        size = self.word(table + self.layout.bytes_size)
        if not 0 < size <= _MAX_TABLE_BYTES or self.type_name(table) != "bytes":
            return 0
        values = _varints(self._read(table + self.layout.bytes_data, size) or b"")
        unit = (frame.instruction - frame.code - self.layout.code_bytes) // 2
        for start, length, _, depth in zip(values, values, values, values, strict=False):
            if start <= unit < start + length:
                return depth >> 1
        return 0


def _varints(data: bytes) -> Iterator[int]:
    """Yield the numbers of an exception table: six bits a byte, high ones first."""
    value = 0
    for byte in data:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            yield value
            value = 0


def _cut(value: str | bytes) -> str:
    return repr(value) if len(value) <= _MAX_TEXT else f"{value[:_MAX_TEXT]!r}..."
