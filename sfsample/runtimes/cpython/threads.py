"""Lists the thread states of CPython, and reads the global interpreter lock.

A thread state leads to the Python frames of a thread.  A thread may have several thread states, one for each
interpreter that it has entered.  The target runs while sfsample reads the list, so the list may be torn.
sfsample believes a thread state only if a later copy of this state still has the id of the thread.  The
budget of the look (`core.budget`) limits the length of a list: when the budget is spent, `read` returns None.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from sfsample.core.memory import USER_SPACE, ReadMemory, Span, word_in
from sfsample.runtimes.cpython.find import Interpreter
from sfsample.runtimes.cpython.layout import Layout

_GIL_BYTES, _GIL_HOLDER, _GIL_LOCKED = 208, 8, 16  # size and two offsets of struct _gil_runtime_state
_GIL_WORDS = 24  # first bytes of a GIL, up to the fields about its holder
_MAX_COUNTERS = 64  # interpreters whose counters are read
TORN = -1  # "thread id" that marks a list which changed while sfsample read it
SHARED = -2  # "thread id" of thread states that any thread may run
UNBORN = 0  # "thread id" of thread states whose threads have not begun yet


def thread_states(interpreter: Interpreter, read: ReadMemory) -> dict[int, list[int]]:
    """Return the addresses of the thread states, by thread id in the target's pid namespace.

    In 3.11 the state of a thread that has not begun has the id of the thread's creator, whose own state is
    older.  Up to 3.12 a sub-interpreter has one thread state, also listed as SHARED: any thread may run it.
    """
    by_tid: dict[int, list[int]] = {}
    *others, last = [*_interpreters(interpreter, read)] or [0]
    for owner in (*others, last):
        states = [*_threads(interpreter.layout, owner, read)]
        oldest = {tid: state for state, tid in states}
        for state, tid in states:
            by_tid.setdefault(tid if state == oldest[tid] else UNBORN, []).append(state)
            if interpreter.layout.has_cframes and owner != last and tid > 0:
                by_tid.setdefault(SHARED, []).append(state)
    return by_tid


def counters(interpreter: Interpreter, read: ReadMemory) -> tuple[Span, ...]:
    """Return the spans of the words that change when the target creates an interpreter or a thread state.

    The words are the address of the newest interpreter, and for each interpreter the number of thread states
    that it has ever created (`threads.next_unique_id`).
    """
    layout = interpreter.layout
    owners = (at for at in islice(_interpreters(interpreter, read), _MAX_COUNTERS) if at < USER_SPACE)
    return ((interpreter.runtime + layout.interpreters, 8), *((at + layout.threads - 8, 8) for at in owners))


def _interpreters(interpreter: Interpreter, read: ReadMemory) -> Iterator[int]:
    layout = interpreter.layout
    at = word_in(read(interpreter.runtime + layout.interpreters, 8))
    seen = {0}
    while at not in seen:
        seen.add(at)
        yield at
        at = word_in(read(at + layout.interpreter_next, 8))


def _threads(layout: Layout, owner: int, read: ReadMemory) -> Iterator[tuple[int, int]]:
    """Yield the address and the thread id of the thread states of one interpreter, the newest first."""
    at = word_in(read(owner + layout.threads, 8))
    seen = set[int]()
    while at not in seen:
        seen.add(at)
        data = read(at, layout.thread_bytes) if at else None
        if data is None or word_in(data, layout.thread_interpreter) != owner:
            if at:
                yield at, TORN  # state that was freed meanwhile
            return
        yield at, word_in(data, layout.native_thread_id)
        at = word_in(data, layout.thread_next)


class Gil(NamedTuple):
    """The global interpreter lock that a thread needs to run Python code."""

    begin: int  # address of the first byte
    end: int  # address after the last byte
    holder: int  # id of the thread that holds the GIL, in the target's pid namespace; 0: no thread


def read_gil(interpreter: Interpreter, state: int, read: ReadMemory) -> Gil | None:
    """Return the GIL that the thread of a thread state needs; None: unknown, or no GIL."""
    at = _gil_of(interpreter, state, read)
    data = read(at, _GIL_BYTES) if at else None
    if data is None:
        return None
    holder, tid_at = holder_in(data), interpreter.layout.native_thread_id
    return Gil(at, at + _GIL_BYTES, word_in(read(holder + tid_at, 8)) if holder else 0)


def gil_words(interpreter: Interpreter, states: Iterable[int], read: ReadMemory) -> tuple[Span, ...]:
    """Return the spans of the bytes that `holder_in` needs: one span for each GIL of these thread states."""
    gils = dict.fromkeys(_gil_of(interpreter, state, read) for state in states)
    return tuple((at, _GIL_WORDS) for at in gils if at)


def holder_in(data: bytes) -> int:
    """Return the address of the thread state that holds a GIL, from the GIL's first bytes; 0: no holder."""
    is_locked = int.from_bytes(data[_GIL_LOCKED : _GIL_LOCKED + 4], "little") == 1
    return word_in(data, _GIL_HOLDER) if is_locked else 0


def _gil_of(interpreter: Interpreter, state: int, read: ReadMemory) -> int:
    """Return the address of the GIL that a thread state needs; 0: unknown, or no GIL."""
    layout = interpreter.layout
    if layout.gil_pointer is None:
        return 0 if layout.gil is None else interpreter.runtime + layout.gil
    owner = word_in(read(state + layout.thread_interpreter, 8))
    return word_in(read(owner + layout.gil_pointer, 8))
