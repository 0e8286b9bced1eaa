"""Lists the thread states of CPython: where each thread of a process keeps its Python frames.

A thread may have several, one for each interpreter that it has entered.  The target goes on meanwhile, so the
list may be torn; a thread state is believed only if the copy of it that is taken later still states the
thread.
"""

from collections.abc import Iterator

from sfsample.python.find import Interpreter, ReadMemory
from sfsample.python.layout import Layout

_MAX_INTERPRETERS = 1000
_MAX_THREADS = 100_000  # of one interpreter


def thread_states(interpreter: Interpreter, read: ReadMemory) -> dict[int, list[int]]:
    """Return the addresses of the thread states by thread id, as the target's pid namespace has it."""
    layout, found = interpreter.layout, dict[int, list[int]]()
    for owner in _interpreters(interpreter, read):
        for state, tid in _threads(layout, owner, read):
            found.setdefault(tid, []).append(state)
    return found


def _interpreters(interpreter: Interpreter, read: ReadMemory) -> Iterator[int]:
    layout = interpreter.layout
    at = _word(read(interpreter.runtime + layout.interpreters, 8))
    for _ in range(_MAX_INTERPRETERS):
        if not at:
            return
        yield at
        at = _word(read(at + layout.interpreter_next, 8))


def _threads(layout: Layout, owner: int, read: ReadMemory) -> Iterator[tuple[int, int]]:
    """Yield the address and the thread id of the thread states of one interpreter."""
    at = _word(read(owner + layout.threads, 8))
    for _ in range(_MAX_THREADS):
        data = read(at, layout.thread_bytes) if at else None
        if data is None or _word(data, layout.thread_interpreter) != owner:
            return  # the end, or it was freed meanwhile
        yield at, _word(data, layout.native_thread_id)
        at = _word(data, layout.thread_next)


def _word(data: bytes | None, at: int = 0) -> int:
    return int.from_bytes(data[at : at + 8], "little") if data else 0
