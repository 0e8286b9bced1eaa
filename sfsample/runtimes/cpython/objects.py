"""Reads simple objects of CPython from the memory of the target: texts, numbers, attributes, locals, `with`.

Every address comes from the target's memory.  So each read takes from the budget of the look, and an
impossible value becomes 0 or None.  This module has the offsets that the table of offsets lacks.  These
offsets are equal in 3.11 to 3.15, unless the code uses `minor`.  Builds without a GIL have other headers, so
sfsample does not read objects of these builds.

Source: Include/cpython and Include/internal of CPython 3.11 to 3.15: dictobject.h, pycore_dict.h, object.h,
longintrepr.h, genobject.h, methodobject.h, code.h; Objects/exception_handling_notes.txt.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from struct import Struct, unpack

from sfsample.core.budget import Budget
from sfsample.core.memory import USER_SPACE, ReadMemory, word_in
from sfsample.runtimes.cpython.chain import TAGS, PythonFrame
from sfsample.runtimes.cpython.code_objects import read_string
from sfsample.runtimes.cpython.layout import Layout
from sfsample.runtimes.cpython.python_stack import Row, frames_in

_TYPE_FLAGS, _TYPE_BASICSIZE, _TYPE_DICTOFFSET = 168, 32, 288
_CACHED_KEYS = {11: 872, 15: 888}  # offset of ht_cached_keys by minor version; other versions: 880
_INLINE_VALUES, _MANAGED_DICT = 1 << 2, 1 << 4  # Py_TPFLAGS_...
_DICT_KEYS, _DICT_VALUES = 32, 40
_KEYS_HEADER = Struct("<8xBBBxIqq")  # start of PyDictKeysObject: two sizes, kind, version, usable, entries
_GENERAL_KEYS = 0  # kind of keys whose entries have a hash
_CODE_NAMES, _CODE_EXCEPTIONS = 32, 40  # offsets of co_names and co_exceptiontable
_FUNCTION_QUALNAME, _DESCRIPTOR_NAME = 40, 24
_CALLED, SELF = 16, 24  # offsets in a method: its function, and its object
SET_USED = 24  # offset of the number of items of a set
_SET_MASK, _SET_TABLE = 32, 40

_MAX_WORDS = 1 << 21  # words of a set, dict, list or tuple; more than the budget permits
_MAX_INDEX_BITS = 16  # log2 of the size of a dict's index in bytes
_MAX_NAME = 100  # bytes of the name of a type
_MAX_SLOTS = 512  # slots of a frame that are read
_MAX_ITEMS = 1000  # items of a tuple or list that are read
_MAX_DIGITS = 10  # digits of 30 bits; an integer with more digits is not read
_MAX_SHOWN = 5  # items of a collection that are shown
_MAX_TEXT = 80  # characters of a text that is shown
_MAX_TABLE_BYTES = 1 << 16  # bytes of an exception table
_MAX_KNOWN = 100_000  # entries of a cache
_CONDITIONS = ("threading.py", "asyncio/locks.py")  # files whose `Condition.wait` releases a lock


class Objects:
    """The objects of one process, for one look; `read` reads its current memory."""

    def __init__(self, layout: Layout, read: ReadMemory, budget: Budget) -> None:
        self.layout, self._target, self._budget = layout, read, budget
        # Names of types whose fields have impossible values, because this Python has other offsets.
        self.odd = dict[str, None]()
        cached = lru_cache(_MAX_KNOWN)  # key: address of a type, a string or a code object, all seldom freed
        self._name_of_type = cached(lambda kind: self._c_string(self.word(kind + layout.type_name)))
        self._key = cached(self.text)
        self._names = cached(self._read_names)
        self._shape = cached(lambda code: self.words(code + layout.first_line - 4, 2) or (0, 0))
        self._depth = cached(self._read_depth)

    def read(self, address: int, size: int) -> bytes | None:
        """Return the bytes at an address; None: unreadable, or the budget is spent."""
        is_permitted = self._budget.permits(size)
        return self._target(address, size) if is_permitted and 0 < address < USER_SPACE else None

    def word(self, address: int) -> int:
        """Return the word at an address; 0: unreadable."""
        return word_in(self.read(address, 8))

    def words(self, address: int, count: int) -> tuple[int, ...]:
        """Return the words at an address; (): unreadable."""
        data = self.read(address, 8 * count) if 0 < count <= _MAX_WORDS else None
        return unpack(f"<{count}Q", data) if data else ()

    def type_name(self, address: int) -> str:
        """Return the name of an object's type: "_thread.RLock", or "Thread" (a Python class); "": unknown."""
        return self._name_of_type(self.word(address + self.layout.type)) if address else ""

    def _c_string(self, address: int) -> str:
        """Return a short text that ends with a zero byte; "": no such text."""
        room = 4096 - address % 4096  # bytes up to the end of the page
        text, end, _ = (self.read(address, min(_MAX_NAME, room)) or b"").partition(b"\0")
        return text.decode("utf-8", "replace") if end else ""

    def text(self, address: int, most: int = _MAX_NAME) -> str | None:
        """Return the first characters of a string object; None: no string object."""
        if self.type_name(address) != "str":
            return None
        return read_string(self.layout, self.read, address, most)

    def integer(self, address: int) -> int | None:
        """Return the value of an int or bool; None: another type, or a very large value."""
        kind, size = self.type_name(address), self.word(address + self.layout.bytes_size)
        count, negative = size >> 3, size & 3 == 2
        if self.layout.minor == 11:
            count, negative = min(size, (1 << 64) - size), bool(size >> 63)
        if kind not in ("int", "bool") or count > _MAX_DIGITS:
            return None
        data = self.read(address + self.layout.bytes_size + 8, 4 * count) or bytes(4 * count)
        value = sum(digit << 30 * place for place, digit in enumerate(unpack(f"<{count}I", data)))
        return bool(value) if kind == "bool" else -value if negative else value

    def items(self, address: int) -> tuple[int, ...]:
        """Return the addresses of the first items of a list or tuple; (): another type."""
        kind, at = self.type_name(address), address + self.layout.bytes_size + 8
        if kind not in ("list", "tuple"):
            return ()
        count, is_list = min(self.word(at - 8), _MAX_ITEMS), kind == "list"
        return self.words(self.word(at) if is_list else at + 8 * (self.layout.minor >= 14), count)

    def members(self, address: int) -> tuple[int, ...]:
        """Return the addresses of the items of a set, perhaps with removed items."""
        count = self.word(address + _SET_MASK) + 1 if self.type_name(address) == "set" else 0
        words = self.words(self.word(address + _SET_TABLE), 2 * count)
        return tuple(filter(None, words[::2]))  # an entry has two words: the item and its hash

    def attribute(self, address: int, name: str) -> int:
        """Return the address of an attribute of a module or an instance (not of its class); 0: none."""
        kind = self.word(address + self.layout.type)
        flags, minor = self.word(kind + _TYPE_FLAGS), self.layout.minor
        if not flags & _MANAGED_DICT:
            offset = self.word(kind + _TYPE_DICTOFFSET)
            return self.item(self.word(address + offset), name) if 0 < offset < 1 << 20 else 0
        managed, values = self.word(address - 24), 0
        if minor == 11:
            values = self.word(address - 32)
        elif minor == 12:
            values = managed + 1 if managed & 1 else 0
        elif not managed and flags & _INLINE_VALUES:
            values = address + self.word(kind + _TYPE_BASICSIZE) + 8
        keys = _CACHED_KEYS.get(minor, 880)
        return self._in_keys(self.word(kind + keys), values, name) if values else self.item(managed, name)

    def item(self, address: int, name: str) -> int:
        """Return the address of the value that a dict has for the key `name`; 0: no such key."""
        return self._in_keys(*self._parts(address), name)

    def _parts(self, address: int) -> tuple[int, int]:
        """Return the addresses of a dict's table of keys and of its values (0: the table has the values)."""
        values = self.word(address + _DICT_VALUES)
        return self.word(address + _DICT_KEYS), values + 8 if values and self.layout.minor >= 13 else values

    def _in_keys(self, keys: int, values: int, name: str) -> int:
        entries = self._entries(keys, values)
        return next((self.word(place) for key, place in entries if self._key(key) == name), 0)

    def _entries(self, keys: int, values: int) -> Iterator[tuple[int, int]]:
        """Yield the address of each key, and of the word that points to the value."""
        header = self.read(keys, _KEYS_HEADER.size)
        _, index_bytes, kind, _, _, count = _KEYS_HEADER.unpack(header or bytes(_KEYS_HEADER.size))
        if not 0 < count <= _MAX_WORDS or index_bytes > _MAX_INDEX_BITS:
            return
        width, begin = 3 if kind == _GENERAL_KEYS else 2, keys + 32 + (1 << index_bytes)
        for number, key in enumerate(self.words(begin, count * width)[width - 2 :: width]):
            yield key, values + 8 * number if values else begin + 8 * (number * width + width - 1)

    # -- frames

    def slots(self, frame: PythonFrame) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the objects in a frame's locals and cells, and on its value stack, old entries included."""
        room, variables = (word & 0xFFFFFFFF for word in self._shape(frame.code))
        words = self.words(frame.address + self.layout.frame_bytes, min(room + variables, _MAX_SLOTS))
        objects = tuple(0 if word & TAGS == TAGS else word & ~TAGS for word in words)
        return objects[:variables], objects[variables:]

    def _read_names(self, code: int) -> tuple[str, ...]:
        """Return the names of the locals and cells of a code object (`co_localsplusnames`)."""
        return tuple(self._key(at) or "" for at in self.items(self.word(code + self.layout.filename - 16)))

    def locals(self, frame: PythonFrame) -> dict[str, int]:
        """Return the addresses of arguments and locals by name; 0: the variable has no value."""
        return dict(zip(self._names(frame.code), self.slots(frame)[0], strict=False))

    def local(self, frame: PythonFrame, name: str) -> int:
        """Return the address of a local; 0: no local of this name, or no value."""
        return self.value(self.locals(frame).get(name, 0))

    def value(self, slot: int) -> int:
        """Return the object of a variable; the variable may be in a cell, which closures share."""
        return self.word(slot + self.layout.bytes_size) if self.type_name(slot) == "cell" else slot

    def names(self, frame: PythonFrame) -> tuple[str, ...]:
        """Return the names of the globals and attributes that the code of a frame uses."""
        names = self.items(self.word(frame.code + _CODE_NAMES))
        return tuple(filter(None, map(self._key, names[:_MAX_SLOTS])))

    def globals(self, frame: PythonFrame) -> int:
        """Return the address of the dict of the globals of a frame."""
        return self.word(frame.address + (8 if self.layout.minor == 11 else 24))

    def reprs(self, frame: PythonFrame) -> Iterator[tuple[str, str]]:
        """Yield the name and a short text of each argument and local that has a value."""
        for name, slot in self.locals(frame).items():
            if name and (address := self.value(slot)):
                yield name, self.repr(address)

    def repr(self, address: int, *, with_items: bool = True) -> str:
        """Return a short text: a simple value, a collection ("<list of 9: 1, 'a', ...>") or a type."""
        kind, at = self.type_name(address), self.layout.bytes_size
        value: object = None
        size = self.word(address + (SET_USED if kind in ("set", "frozenset") else at))
        match kind:
            case "NoneType":
                return "None"
            case "int" | "bool":
                value = self.integer(address)
            case "float":
                [value] = unpack("<d", size.to_bytes(8, "little"))
            case "str":
                value = self.text(address, _MAX_TEXT + 1)
            case "bytes":
                value = self.read(address + self.layout.bytes_data, min(size, _MAX_TEXT + 1)) if size else b""
            case "list" | "tuple" | "dict" | "set" | "frozenset":
                items = self._first_items(kind, address, size) if with_items else ""
                return f"<{kind} of {size}{items and ': '}{items}>"
        if isinstance(value, str | bytes) and len(value) > _MAX_TEXT:
            return f"{value[:_MAX_TEXT]!r}..."
        return f"<{kind or '?'}>" if value is None else repr(value)

    def _first_items(self, kind: str, address: int, size: int) -> str:
        """Return short texts of the first items of a collection, without items of nested collections."""
        if kind == "dict":
            filled = ((key, self.word(place)) for key, place in self._entries(*self._parts(address)) if key)
            pairs = islice(((key, value) for key, value in filled if value), _MAX_SHOWN)
            texts = [": ".join(self.repr(one, with_items=False) for one in pair) for pair in pairs]
        else:
            items = self.items(address) if kind in ("list", "tuple") else ()
            texts = [self.repr(item, with_items=False) for item in items[:_MAX_SHOWN]]
        text = ", ".join([*texts, *["..."] * (0 < len(texts) < size)])
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."

    def entered(self, frame: PythonFrame) -> Iterator[int]:
        """Yield the object of each `with` and `async with` statement in which a frame is.

        In a `with` statement, the value stack has the method `__exit__`; from 3.14 on, the function
        `__exit__` and then the object.  The exception table says how much of the value stack is in use.
        """
        depth = self._depth(frame.code, frame.instruction)
        is_exit = False
        for slot in self.slots(frame)[1][:depth] if depth else ():
            if is_exit:
                yield slot
            kind = self.type_name(slot)
            is_exit = self._called(kind, slot).endswith(("__exit__", "__aexit__"))
            if is_exit and kind.endswith("method"):
                yield self.word(slot + SELF)
                is_exit = False

    def calls(self, frame: PythonFrame, name: str) -> bool:
        """Return True if the value stack of a frame has, or had, a function whose name ends with `name`."""
        return any(self._called(self.type_name(slot), slot).endswith(name) for slot in self.slots(frame)[1])

    def _called(self, kind: str, address: int) -> str:
        """Return the name of a function or method; "": the object is no function and no method."""
        called = self.word(address + _CALLED)
        match kind:
            case "builtin_function_or_method":
                return self._c_string(self.word(called))
            case "method":
                name = called + _FUNCTION_QUALNAME
            case "method_descriptor":
                name = address + _DESCRIPTOR_NAME
            case "function":
                name = address + _FUNCTION_QUALNAME
            case _:
                return ""
        return self._key(self.word(name)) or ""

    def _read_depth(self, code: int, instruction: int) -> int:
        """Return the number of entries of the value stack that are certainly in use at an instruction."""
        table = self.word(code + _CODE_EXCEPTIONS)
        size = self.word(table + self.layout.bytes_size)
        if not 0 < size <= _MAX_TABLE_BYTES or self.type_name(table) != "bytes":
            return 0
        values = _varints(self.read(table + self.layout.bytes_data, size) or b"")
        unit = (instruction - code - self.layout.code_bytes) // 2
        for start, length, _, depth in zip(values, values, values, values, strict=False):
            if start <= unit < start + length:
                return depth >> 1
        return 0


def entered(objects: Objects, rows: Sequence[Row], near: int, lock: int) -> frozenset[int]:
    """Return the objects of the `with` statements in which the frames are, without the released locks.

    A Condition releases its lock during a wait.  The innermost `near` frames wait for `lock`, so they do not
    hold it, even inside `with lock`: a frame has released `lock` there, or has only begun an `async with`.
    """
    found = ((at, address) for at, (_, frame) in enumerate(rows) for address in objects.entered(frame))
    locks = ((at, objects.attribute(address, "_semlock") or address) for at, address in found)
    inside = {address for at, address in locks if at >= near or address != lock}
    waits = [frame for file in _CONDITIONS for frame in frames_in(rows, file, "Condition.wait")]
    released = {objects.attribute(objects.local(frame, "self"), "_lock") for frame in waits}
    return frozenset(inside - released)


def _varints(data: bytes) -> Iterator[int]:
    """Yield the numbers of an exception table.  Each byte has six bits of a number, the high bits first."""
    value = 0
    for byte in data:
        value = value << 6 | byte & 0x3F
        if not byte & 0x40:
            yield value
            value = 0
