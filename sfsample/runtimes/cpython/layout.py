"""Offsets of the fields of CPython that a stack needs, in bytes, for a minor version and a kind of build.

From 3.13 on a process states most offsets itself, in the table at the start of `_PyRuntime`.  The offsets of
3.11 and 3.12, and a few that the table lacks, come from the headers of CPython.  An unknown version has no
layout, because guessed offsets would show wrong frames.

Source: Include/internal/pycore_runtime_structs.h, pycore_debug_offsets.h, pycore_interpframe_structs.h,
pycore_gil.h and cpython/code.h of CPython 3.11 to 3.15.
"""

from struct import Struct
from typing import Any, NamedTuple

from sfsample.errors import BadInput

COOKIE = b"xdebugpy"  # the first bytes of `_PyRuntime`, from 3.13 on
NEWEST = (3, 15)
MAX_TABLE_BYTES = 888
_MAX_OFFSET = 1 << 20  # bytes of PyInterpreterState, the largest structure
_MAX_FRAME_BYTES = 1 << 10  # bytes of a frame without its locals
_RELEASE = 0xF0  # level of a final release in PY_VERSION_HEX; pre-releases have a lower level
_HEADER = Struct("<8sQQ")  # cookie, version, flag: 1 if there is no GIL

_RUNTIME = "size finalizing interpreters_head"
_INTERPRETER = ("size id next threads_head gc imports_modules sysdict builtins ceval_gil gil_runtime_state "
                "gil_enabled gil_locked gil_holder")  # fmt: skip
_THREAD = "size prev next interp current_frame thread_id native_thread_id datastack_chunk status"
_FRAME = "size previous executable instr_ptr localsplus owner"
_CODE = ("size filename name qualname linetable firstlineno argcount localsplusnames localspluskinds "
         "co_code_adaptive")  # fmt: skip
_SEQUENCE = "size ob_item ob_size"
_STRING = "size state length asciiobject_size"
_TABLE_3_13 = {
    "runtime": _RUNTIME, "interpreter": _INTERPRETER, "thread": _THREAD, "frame": _FRAME, "code": _CODE,
    "object": "size ob_type", "type": "size tp_name tp_repr tp_flags", "tuple": _SEQUENCE, "list": _SEQUENCE,
    "dict": "size ma_keys ma_values", "float": "size ob_fval", "long": "size lv_tag ob_digit",
    "bytes": "size ob_size ob_sval", "string": _STRING, "gc": "size collecting",
}  # fmt: skip


def _changed(table: dict[str, str], after: dict[str, str], changes: dict[str, str]) -> dict[str, str]:
    """Return a table with changed groups; `after` maps each new group to the group before it."""
    result = {}
    for name, words in table.items():
        result[name] = changes.get(name, words)
        result |= {new: changes[new] for new, place in after.items() if place == name}
    return result


_TABLE_3_14 = _changed(
    _TABLE_3_13,
    {"set": "list"},
    {
        "interpreter": _INTERPRETER.replace("threads_head", "threads_head threads_main")
        + " code_object_generation tlbc_generation",
        "frame": _FRAME + " stackpointer tlbc_index", "code": _CODE + " co_tlbc",
        "set": "size used table mask",
    },
) | {
    "generator": "size gi_name gi_iframe gi_frame_state", "llist": "next prev", "debugger": "a b c d e f",
}  # fmt: skip
_TABLE_3_15 = _changed(
    _TABLE_3_14,
    {"exception": "thread", "heap_type": "type"},
    {
        "thread": _THREAD.replace("current_frame", "current_frame base_frame last_profiled_frame last_seq")
        + " holds_gil gil_requested current_exception exc_state",
        "exception": "exc_value", "type": "size tp_name tp_repr tp_flags tp_basicsize tp_dictoffset",
        "heap_type": "size ht_cached_keys", "string": _STRING + " compactunicodeobject_size",
        "gc": "size collecting frame generation_stats_size generation_stats",
    },
)  # fmt: skip
_TABLES = {13: _TABLE_3_13, 14: _TABLE_3_14, 15: _TABLE_3_15}


class Layout(NamedTuple):
    """Offsets of fields from the start of their structure, in bytes; None: this version lacks the field."""

    minor: int
    free_threaded: bool
    interpreters: int  # field of _PyRuntime: the head of the list of interpreters
    interpreter_next: int  # field of PyInterpreterState: the address of the next interpreter
    threads: int  # field of PyInterpreterState: the head of its list of thread states
    gil: int | None  # field of _PyRuntime: the GIL itself
    gil_pointer: int | None  # field of PyInterpreterState: the address of the GIL
    thread_next: int  # field of PyThreadState, like the next ones
    thread_interpreter: int
    native_thread_id: int
    chunk: int
    chunk_top: int
    chunk_limit: int
    thread_frame: int  # field with the address of the current frame; in 3.11 and 3.12 of a _PyCFrame
    thread_base: int | None
    cframe_frame: int  # field of _PyCFrame, like the next one; only 3.11 and 3.12 have this structure
    cframe_previous: int
    executable: int  # field of _PyInterpreterFrame, like the next ones
    previous: int
    instruction: int
    owner: int
    is_entry: int | None
    frame_bytes: int  # size of the frame without its locals
    code_size: int  # field of PyCodeObject, like the next ones
    first_line: int
    code_version: int | None
    filename: int
    qualname: int
    linetable: int
    code_bytes: int
    type: int  # field of PyObject
    type_name: int  # field of PyTypeObject
    bytes_size: int  # field of PyBytesObject, like the next one
    bytes_data: int
    string_length: int  # field of PyASCIIObject, like the next one
    string_state: int
    ascii_data: int  # offset of the characters of an ASCII string
    other_data: int  # offset of the characters of any other string
    kind_bit: int  # number of the bit in the string's state at which kind (3 bits), compact and ascii begin

    @property
    def has_cframes(self) -> bool:
        """Return True if the thread state leads to the current frame through a `_PyCFrame`."""
        return self.minor <= 12

    @property
    def sentinel_owners(self) -> tuple[int, ...]:
        """Return the values of `owner` that only sentinels have; Python frames have others."""
        return () if self.minor == 11 else (3, 4) if self.minor >= 14 else (3,)

    @property
    def thread_bytes(self) -> int:
        """Return the number of bytes of a PyThreadState that a walk needs."""
        return self.chunk_limit + 8


_OLD: dict[str, Any] = {
    "free_threaded": False, "interpreters": 40, "interpreter_next": 0, "thread_next": 8,
    "thread_interpreter": 16, "thread_frame": 56, "thread_base": None, "instruction": 56, "frame_bytes": 72,
    "code_size": 16, "filename": 112, "qualname": 128, "linetable": 136, "type": 8, "type_name": 24,
    "bytes_size": 16, "bytes_data": 32, "string_length": 16, "string_state": 32, "kind_bit": 2,
}  # fmt: skip
FIXED = {  # layouts of the versions that state no offsets, by minor version
    11: Layout(minor=11, gil=360, gil_pointer=None, threads=16, native_thread_id=160, chunk=296,
               chunk_top=304, chunk_limit=312, cframe_frame=8, cframe_previous=16, executable=32,
               previous=48, owner=69, is_entry=68, first_line=72, code_version=None, code_bytes=184,
               ascii_data=48, other_data=72, **_OLD),
    12: Layout(minor=12, gil=None, gil_pointer=384, threads=72, native_thread_id=144, chunk=232,
               chunk_top=240, chunk_limit=248, cframe_frame=0, cframe_previous=8, executable=0,
               previous=8, owner=70, is_entry=None, first_line=68, code_version=92, code_bytes=192,
               ascii_data=40, other_data=56, **_OLD),
}  # fmt: skip


def layout_of(version: int, table: bytes = b"") -> Layout:
    """Return the layout for a PY_VERSION_HEX; `table` is the start of `_PyRuntime`, from 3.13 on.

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
    names = [(group, word) for group, words in _TABLES[minor].items() for word in words.split()]
    size = _HEADER.size + 8 * len(names)
    cookie, _, free_threaded = _HEADER.unpack_from(table.ljust(_HEADER.size, b"\0"))
    if cookie != COOKIE or len(table) < size:
        raise BadInput(f"{name}: its table of offsets is missing")
    words = Struct(f"<{len(names)}Q").unpack_from(table, _HEADER.size)
    at = dict(zip(names, words, strict=True))
    if at["runtime", "interpreters_head"] != size + 48 or at["object", "size"] != at["object", "ob_type"] + 8:
        raise BadInput(f"{name}: its table of offsets is not that of the release")
    return _checked(name, _from_table(minor, bool(free_threaded), at))


def _from_table(minor: int, free_threaded: bool, at: dict[tuple[str, str], int]) -> Layout:
    ascii_data, chunk = at["string", "asciiobject_size"], at["thread", "datastack_chunk"]
    return Layout(
        minor=minor, free_threaded=free_threaded, interpreters=at["runtime", "interpreters_head"],
        interpreter_next=at["interpreter", "next"], threads=at["interpreter", "threads_head"],
        gil=None, gil_pointer=None if free_threaded else at["interpreter", "ceval_gil"],
        thread_next=at["thread", "next"], thread_interpreter=at["thread", "interp"],
        native_thread_id=at["thread", "native_thread_id"], chunk=chunk, chunk_top=chunk + 8,
        chunk_limit=chunk + 16, thread_frame=at["thread", "current_frame"],
        thread_base=at.get(("thread", "base_frame")), cframe_frame=0,
        cframe_previous=0, executable=at["frame", "executable"], previous=at["frame", "previous"],
        instruction=at["frame", "instr_ptr"], owner=at["frame", "owner"], is_entry=None,
        frame_bytes=at["frame", "localsplus"],
        code_size=at["object", "size"], first_line=at["code", "firstlineno"],
        code_version=at["code", "firstlineno"] + 24, filename=at["code", "filename"],
        qualname=at["code", "qualname"], linetable=at["code", "linetable"],
        code_bytes=at["code", "co_code_adaptive"], type=at["object", "ob_type"],
        type_name=at["type", "tp_name"], bytes_size=at["bytes", "ob_size"], bytes_data=at["bytes", "ob_sval"],
        string_length=at["string", "length"], string_state=at["string", "state"], ascii_data=ascii_data,
        other_data=ascii_data + 16, kind_bit=8 if free_threaded and minor >= 14 else 2,
    )  # fmt: skip


def _checked(name: str, layout: Layout) -> Layout:
    """Return `layout`; raise BadInput if a field is not aligned, or is not in the bytes that are read."""
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
