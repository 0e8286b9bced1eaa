"""Lists the thread states of CPython: where each thread of a process keeps its Python frames.

A thread may have several, one for each interpreter that it has entered.  The target goes on meanwhile, so the
list may be torn; a thread state is believed only if the copy of it that is taken later still states the
thread.  `read` bounds the lists: it ends with the budget of a look (`core.budget`).
"""

from collections.abc import Iterator
from itertools import islice

from sfsample.core.memory import USER_SPACE, Span
from sfsample.python.find import Interpreter, ReadMemory
from sfsample.python.layout import Layout, word_in

_MAX_COUNTERS = 64
TORN = -1  # the thread id of a state that shows that the list has changed while it was read
UNBORN = 0  # that of a thread that has not begun yet


def thread_states(interpreter: Interpreter, read: ReadMemory) -> dict[int, list[int]]:
    """Return the addresses of the thread states by thread id, as the target's pid namespace has it.

    In 3.11 the state of a thread that has not begun has the id of its creator, whose own state is older.
    """
    layout, found = interpreter.layout, dict[int, list[int]]()
    for owner in _interpreters(interpreter, read):
        states = [*_threads(layout, owner, read)]
        oldest = {tid: state for state, tid in states}
        for state, tid in states:
            found.setdefault(tid if state == oldest[tid] else UNBORN, []).append(state)
    return found


def counters(interpreter: Interpreter, read: ReadMemory) -> tuple[Span, ...]:
    """Return the words that change when an interpreter or a thread state comes.

    They are the newest interpreter, and how many thread states each one has ever created
    (`threads.next_unique_id`).
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
                yield at, TORN  # it was freed meanwhile
            return
        yield at, word_in(data, layout.native_thread_id)
        at = word_in(data, layout.thread_next)
