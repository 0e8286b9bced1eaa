"""Defines the offsets (in bytes) of the fields of CPython that sfsample reads, for each minor version.

From 3.13 on, a process has most offsets in a table at the start of `_PyRuntime`.  The offsets of 3.11 and
3.12, and offsets that the table lacks, come from the headers of CPython.  An unknown version has no layout,
because guessed offsets would show wrong frames.

Source: Include/internal/pycore_runtime_structs.h, pycore_debug_offsets.h, pycore_interpframe_structs.h,
pycore_gil.h and cpython/code.h of CPython 3.11 to 3.15.
"""

from struct import Struct
from typing import Any, NamedTuple

from sfsample.errors import BadInput

COOKIE = b"xdebugpy"  # the first bytes of `_PyRuntime`, from 3.13 on
NEWEST = (3, 15)
MAX_TABLE_BYTES = 888
_MAX_OFFSET = 1 << 20  # limit for offsets in PyInterpreterState, the largest structure
_MAX_FRAME_BYTES = 1 << 10  # bytes of a frame without its locals
_RELEASE = 0xF0  # level of a final release in PY_VERSION_HEX; pre-releases have a lower level
_HEADER = Struct("<8sQQ")  # cookie, version, flag: 1 if there is no GIL

_TABLE_WORDS = {13: 70, 14: 92, 15: 108}  # words after the header, by minor version
# Field of Layout: indexes of its word in the tables of 3.13, 3.14 and 3.15 (struct _Py_DebugOffsets).
_STATED = {
    "interpreters": (2, 2, 2),  # runtime_state.interpreters_head
    "interpreter_next": (5, 5, 5),
    "threads": (6, 6, 6),  # interpreter_state.threads_head
    "gil_pointer": (11, 12, 12),  # interpreter_state.ceval_gil
    "thread_next": (18, 21, 21),
    "thread_interpreter": (19, 22, 22),
    "thread_frame": (20, 23, 23),  # thread_state.current_frame
    "thread_base": (None, None, 24),
    "native_thread_id": (22, 25, 28),
    "chunk": (23, 26, 29),  # thread_state.datastack_chunk
    "previous": (26, 29, 37),  # field of interpreter_frame, like the next fields
    "executable": (27, 30, 38),
    "instruction": (28, 31, 39),
    "frame_bytes": (29, 32, 40),  # localsplus
    "owner": (30, 33, 41),
    "filename": (32, 37, 45),  # field of code_object, like the next fields
    "qualname": (34, 39, 47),
    "linetable": (35, 40, 48),
    "first_line": (36, 41, 49),
    "code_bytes": (40, 45, 53),  # co_code_adaptive
    "code_size": (41, 47, 55),  # pyobject.size, the offset of the field ob_size
    "type": (42, 48, 56),
    "type_name": (44, 50, 58),
    "bytes_size": (62, 72, 84),
    "bytes_data": (63, 73, 85),
    "string_state": (65, 75, 87),
    "string_length": (66, 76, 88),
    "ascii_data": (67, 77, 89),  # unicode_object.asciiobject_size
}


class Layout(NamedTuple):
    """The offsets of fields in their structures, in bytes; None: this version lacks the field."""

    minor: int
    interpreters: int  # field of _PyRuntime: address of the first interpreter
    interpreter_next: int  # field of PyInterpreterState: address of the next interpreter
    threads: int  # field of PyInterpreterState: address of the first thread state
    thread_next: int  # field of PyThreadState, like the next fields
    thread_interpreter: int
    native_thread_id: int
    chunk: int  # datastack_chunk; then datastack_top and datastack_limit
    thread_frame: int  # address of the current frame; in 3.11 and 3.12, address of a _PyCFrame
    executable: int  # field of _PyInterpreterFrame, like the next fields
    previous: int
    instruction: int
    owner: int
    frame_bytes: int  # size of the frame without its locals
    code_size: int  # field of PyCodeObject, like the next fields
    first_line: int
    filename: int
    qualname: int
    linetable: int
    code_bytes: int
    type: int  # field of PyObject
    type_name: int  # field of PyTypeObject
    bytes_size: int  # field of PyBytesObject, like the next field
    bytes_data: int
    string_length: int  # field of PyASCIIObject, like the next field
    string_state: int
    ascii_data: int  # offset of the characters of an ASCII string
    other_data: int  # offset of the characters of any other string
    free_threaded: bool = False
    gil: int | None = None  # field of _PyRuntime: the GIL itself
    gil_pointer: int | None = None  # field of PyInterpreterState: the address of the GIL
    thread_base: int | None = None  # field of PyThreadState: the frame that ends each chain
    cframe_frame: int = 0  # field of _PyCFrame (3.11 and 3.12): current frame; then the outer _PyCFrame
    is_entry: int | None = None  # field of _PyInterpreterFrame
    code_version: int | None = None  # field of PyCodeObject
    kind_bit: int = 2  # lowest bit of `kind` (3 bits) in a string's state; then `compact` and `ascii`

    @property
    def has_cframes(self) -> bool:
        """Return True if the thread state leads to the current frame through a `_PyCFrame`."""
        return self.minor <= 12

    @property
    def sentinel_owners(self) -> tuple[int, ...]:
        """Return the values of `owner` that only sentinels have."""
        return () if self.minor == 11 else (3, 4) if self.minor >= 14 else (3,)

    @property
    def thread_bytes(self) -> int:
        """Return the number of bytes that a walk needs of a PyThreadState."""
        return self.chunk + 24


_OLD: dict[str, Any] = {
    "interpreters": 40, "interpreter_next": 0, "thread_next": 8, "thread_interpreter": 16, "thread_frame": 56,
    "instruction": 56, "frame_bytes": 72, "code_size": 16, "filename": 112, "qualname": 128, "linetable": 136,
    "type": 8, "type_name": 24, "bytes_size": 16, "bytes_data": 32, "string_length": 16, "string_state": 32,
}  # fmt: skip
FIXED = {  # layouts of the versions without a table of offsets, by minor version
    11: Layout(minor=11, gil=360, threads=16, native_thread_id=160, chunk=296, cframe_frame=8, executable=32,
               previous=48, owner=69, is_entry=68, first_line=72, code_bytes=184, ascii_data=48,
               other_data=72, **_OLD),
    12: Layout(minor=12, gil_pointer=384, threads=72, native_thread_id=144, chunk=232, executable=0,
               previous=8, owner=70, first_line=68, code_version=92, code_bytes=192, ascii_data=40,
               other_data=56, **_OLD),
}  # fmt: skip


def layout_of(version: int, table: bytes = b"") -> Layout:
    """Return the layout for a PY_VERSION_HEX.  `table`: from 3.13 on, the first bytes of `_PyRuntime`.

    Raises BadInput if the version is unknown, or if the table does not fit the version.
    """
    major, minor, stage = version >> 24, version >> 16 & 0xFF, version & 0xF0
    name = f"Python {major}.{minor}.{version >> 8 & 0xFF}"
    if major != 3 or not 11 <= minor <= NEWEST[1]:
        raise BadInput(f"{name} is not known; 3.11 to {NEWEST[0]}.{NEWEST[1]} are")
    if stage != _RELEASE:
        raise BadInput(f"{name} is a pre-release, whose structures are not known")
    return FIXED[minor] if minor in FIXED else _stated(minor, name, table)


def _stated(minor: int, name: str, table: bytes) -> Layout:
    count = _TABLE_WORDS[minor]
    size = _HEADER.size + 8 * count
    cookie, _, free_threaded = _HEADER.unpack_from(table.ljust(_HEADER.size, b"\0"))
    if cookie != COOKIE or len(table) < size:
        raise BadInput(f"{name}: its table of offsets is missing")
    words = Struct(f"<{count}Q").unpack_from(table, _HEADER.size)
    indexes = ((field, places[minor - 13]) for field, places in _STATED.items())
    at: dict[str, Any] = {field: None if index is None else words[index] for field, index in indexes}
    if at["interpreters"] != size + 48 or at["code_size"] != at["type"] + 8:
        raise BadInput(f"{name}: its table of offsets does not fit the release")
    if free_threaded:
        at["gil_pointer"] = None
    return _checked(name, Layout(
        minor=minor, free_threaded=bool(free_threaded), code_version=at["first_line"] + 24,
        other_data=at["ascii_data"] + 16, kind_bit=8 if free_threaded and minor >= 14 else 2, **at,
    ))  # fmt: skip


def _checked(name: str, layout: Layout) -> Layout:
    """Return `layout`; raise BadInput if a field is not aligned, or is outside the bytes that are read."""
    in_frame = max(layout.previous + 8, layout.executable + 8, layout.instruction + 8, layout.owner + 1)
    in_thread = max(layout.thread_frame, layout.thread_base or 0) + 8
    names = range(layout.filename, layout.linetable + 8, 8)  # offsets of four adjacent pointers
    words = (layout.frame_bytes, layout.previous, layout.executable, layout.instruction, layout.chunk,
             layout.thread_frame, layout.thread_base or 0, layout.type, layout.linetable)  # fmt: skip
    if (
        max(value for value in layout if value is not None) > _MAX_OFFSET
        or not in_frame <= layout.frame_bytes <= _MAX_FRAME_BYTES
        or in_thread > layout.thread_bytes
        or not layout.type < layout.filename
        or len(names) != 4
        or layout.qualname != names[2]
        or layout.string_length + 8 > layout.string_state
        or any(word % 8 for word in words)
    ):
        raise BadInput(f"{name}: its table of offsets is damaged")
    return layout
