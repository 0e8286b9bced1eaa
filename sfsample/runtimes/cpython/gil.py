"""Reads the global interpreter lock: its address, and the thread that holds it."""

from typing import NamedTuple

from sfsample.runtimes.cpython.find import Interpreter, ReadMemory
from sfsample.runtimes.cpython.layout import GIL_BYTES, GIL_HOLDER, GIL_LOCKED, word_in


class Gil(NamedTuple):
    """The global interpreter lock that a thread needs to run Python code."""

    begin: int  # address of its first byte
    end: int  # address behind its last byte
    holder: int  # id of the thread that holds it, in the target's pid namespace; 0: no thread holds it


def read_gil(interpreter: Interpreter, state: int, read: ReadMemory) -> Gil | None:
    """Return the GIL that a thread needs, by its thread state; None: it is unknown, or there is none."""
    layout = interpreter.layout
    at = interpreter.runtime + layout.gil if layout.gil is not None else 0
    if layout.gil_pointer is not None:
        owner = word_in(read(state + layout.thread_interpreter, 8))
        at = word_in(read(owner + layout.gil_pointer, 8))
    data = read(at, GIL_BYTES) if at else None
    if data is None:
        return None
    is_locked = int.from_bytes(data[GIL_LOCKED : GIL_LOCKED + 4], "little") == 1
    holder = word_in(data, GIL_HOLDER) if is_locked else 0
    return Gil(at, at + GIL_BYTES, word_in(read(holder + layout.native_thread_id, 8)) if holder else 0)
