"""Finds the Python frames and the system call of each thread of a core file.

One budget limits the reads of Python's memory for all threads together.  sfsample reports a system call only
if the result register shows an interrupted call, and the instruction before the pc is a system call.
sfsample knows only the system calls of its own machine; for core files of other machines it reports none.

Source: include/linux/errno.h (ERESTARTSYS).
"""

import os
from collections.abc import Sequence
from functools import partial
from struct import unpack_from

from sfsample.core.arch_types import CoreWords
from sfsample.core.budget import DUMP_NS, Budget, CountedMemory
from sfsample.core.stack import Frame
from sfsample.errors import BadInput
from sfsample.formats.elf.core_file import NT_PRSTATUS, CoreThread
from sfsample.process.core_process import CoreProcess
from sfsample.process.facts.syscall_arguments import DecodedSyscall, TargetLookup, decode_syscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.registers import layout_of
from sfsample.process.syscall_names import syscall_name
from sfsample.runtimes.cpython.code_objects import read_each
from sfsample.runtimes.cpython.find import Interpreter, find_interpreter
from sfsample.runtimes.cpython.place import Placer
from sfsample.runtimes.cpython.python_stack import Names, PythonStack
from sfsample.runtimes.cpython.threads import SHARED, Gil, read_gil, thread_states

_UNLISTED = "no Python frames: the core file has no list of Python's threads"
_SPENT = "Python frames are missing: the core file has more Python data than sfsample reads"
_INTERRUPTED = (-4, -512, -513, -514, -516)  # EINTR, ERESTARTSYS, -NOINTR, -NOHAND, ERESTART_RESTARTBLOCK
_SIGN_BIT = 1 << 63


class CorePython:
    """The Python threads in a core file.  A `tid` is a thread's id in the pid namespace of the process."""

    def __init__(self, core: CoreProcess) -> None:
        self._budget = Budget(DUMP_NS)
        self._memory = CountedMemory(core.memory.read, self._budget)
        self._problem = ""
        self._interpreter = self._find(core)
        if self._interpreter is not None:
            self._states = thread_states(self._interpreter, self._memory.read)
            self._names = Names(self._interpreter.layout, partial(read_each, self._memory))
            self._placer = Placer(self._interpreter.layout, self._interpreter.code)
            self._problem = "" if self._states else _UNLISTED

    def _find(self, core: CoreProcess) -> Interpreter | None:
        if core.arch.byteorder == "little":
            try:
                return find_interpreter(core.modules, self._memory.read)
            except BadInput as unknown:
                self._problem = f"no Python frames: {unknown}"
        return None

    @property
    def problems(self) -> tuple[str, ...]:
        """The reason why Python frames are missing; (): no frame is missing."""
        problem = self._problem or _SPENT * bool(self._budget.why)
        return (problem,) if problem else ()

    def stack(self, tid: int, frames: Sequence[Frame]) -> PythonStack | None:
        """Return the Python frames of a thread; `frames`: its native frames; None: no Python frames."""
        states = () if self._interpreter is None else self._states.get(tid, ())
        if not states:
            return None
        shared = self._states.get(SHARED, ())
        placed = self._placer.place(self._memory, frames, [*dict.fromkeys([*states, *shared])])
        return self._names.named(placed) if placed.activations or not placed.is_whole else None

    def gil(self, tid: int) -> Gil | None:
        """Return the GIL of a thread; None: unknown, or no GIL."""
        if self._interpreter is None or not (states := self._states.get(tid)):
            return None
        return read_gil(self._interpreter, states[0], self._memory.read)


def core_call(core: CoreProcess, thread: CoreThread) -> DecodedSyscall | None:
    """Return the system call in which a thread slept, decoded as far as its memory was dumped."""
    known, words = _words(core, thread)
    arch, layout = core.arch, layout_of(core.arch)
    if known is None or _signed(words[layout.word(layout.result)]) not in _INTERRUPTED:
        return None
    pc, (size, begins) = words[layout.word(arch.pc)], layout.call
    code = core.memory.read(pc - size, size)
    if code is None or not code.startswith(begins):
        return None
    # s390x: the number is in the instruction; if the instruction has 0, the number is in a register
    number = int.from_bytes(code[len(begins) :], arch.byteorder) or _signed(words[known.number])
    if number < 0:
        return None
    arguments = words[known.first_argument], *(words[layout.word(n)] for n in layout.arguments[1:])
    info = SyscallInfo(number, arguments, words[layout.word(arch.sp)], pc)
    return decode_syscall(info, syscall_name(number), TargetLookup(core.memory.read))


def own_tid(core: CoreProcess, thread: CoreThread) -> int:
    """Return the tid that glibc stores for a thread; gcore writes the tid in gcore's own pid namespace."""
    known, words = _words(core, thread)
    start = words[known.thread] if known else 0
    if known is None or not start or {core.memory.word(start), core.memory.word(start + 16)} != {start}:
        return thread.tid
    data = core.memory.read(start + known.tid_at, 4)
    return int.from_bytes(data, core.arch.byteorder) if data else thread.tid


def _words(core: CoreProcess, thread: CoreThread) -> tuple[CoreWords | None, tuple[int, ...]]:
    """Return the machine's `CoreWords`, and all words of NT_PRSTATUS; (None, ()): unknown."""
    layout, raw = layout_of(core.arch), thread.sets.get(NT_PRSTATUS, b"")
    size = layout.sets[0].size
    if os.uname().machine != core.arch.name or len(raw) < size:
        return None, ()
    order = "<" if core.arch.byteorder == "little" else ">"
    return layout.core_words, unpack_from(f"{order}{size // 8}Q", raw)


def _signed(word: int) -> int:
    return (word ^ _SIGN_BIT) - _SIGN_BIT
