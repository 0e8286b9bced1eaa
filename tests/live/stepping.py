"""Steps a program one instruction at a time, and records its true stack at each.

The true stack comes from the instructions, never from unwinding.  A call pushes its return address, and the
frame that it opens ends when sp has passed that word; the frame of a signal ends at rt_sigreturn.  While code
changes to another stack (longjmp, setcontext), or has changed the place to which a handler or a function will
return, the true stack is unknown, until the jump that ends this.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ptrace.binding.func import ptrace

from sfsample.core.arch import AMD64
from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.snapshot import ThreadSnapshot
from tests.live.shadow import Entry, Mappings, Stacks

PTRACE_TRACEME, PTRACE_CONT, PTRACE_SINGLESTEP, PTRACE_GETREGS = 0, 7, 9, 12
PTRACE_SETOPTIONS, PTRACE_GETEVENTMSG = 0x4200, 0x4201
_TRACECLONE, _EXITKILL, _EVENT_CLONE = 0x8, 0x100000, 3
_WALL = 0x40000000
# index in user_regs_struct of DWARF registers 0..16
_ORDER = (10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16)
_RAX, _SP, _PC = 0, 7, 16
_SIGRETURN = 15
_MAX_INSTRUCTION_BYTES = 15
_MAX_STACK_BYTES = 256 << 10
_SIGNAL_FRAME_BYTES = 1024


class State(NamedTuple):
    """A thread before its next instruction; `callers` innermost first, None if they are unknown."""

    tid: int
    registers: dict[int, int]
    callers: tuple[Entry, ...] | None
    code: bytes  # at the pc


def _words(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "little") for value in values)


class Stepped:
    """A traced process."""

    def __init__(self, words: list[str]) -> None:
        self._words = (ctypes.c_ulonglong * 27)()
        self.process = subprocess.Popen(words, preexec_fn=lambda: ptrace(PTRACE_TRACEME))  # noqa: PLW1509
        self.pid = self.process.pid
        self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        self.mappings = Mappings(self.pid)
        self._stacks: dict[int, Stacks] = {self.pid: Stacks()}
        self._wait(self.pid)
        ptrace(PTRACE_SETOPTIONS, self.pid, 0, _TRACECLONE | _EXITKILL)
        self.threads: list[int] = []  # started while stepping, not stepped yet

    def close(self) -> None:
        os.close(self._memory)
        self.process.kill()
        self.process.wait()

    # -- state

    def run_to_trap(self) -> None:
        """Continue to the next `int3`; signals on the way are delivered."""
        number = 0
        while number != signal.SIGTRAP:
            ptrace(PTRACE_CONT, self.pid, 0, number)
            number = self._wait(self.pid)

    def registers(self, tid: int) -> dict[int, int]:
        ptrace(PTRACE_GETREGS, tid, 0, ctypes.addressof(self._words))
        return {number: self._words[index] for number, index in enumerate(_ORDER)}

    def read(self, address: int, size: int) -> bytes:
        try:
            return os.pread(self._memory, size, address)
        except (OSError, OverflowError):
            return b""

    def word(self, address: int) -> int:
        return int.from_bytes(self.read(address, 8), "little")

    def stack_of(self, sp: int) -> int:
        """Return the end of the mapping; its start moves when the stack grows."""
        mapping = self.mappings.at(sp)
        return mapping.end if mapping else 0

    def snapshot(self, state: State, below: int = 128) -> ThreadSnapshot:
        """Copy what sfsample copies: the stack, and those that signals have interrupted.

        `below`: bytes below sp that are copied too; 0 as in a copy that the kernel makes (perf).
        """
        sp = state.registers[_SP]
        starts = [sp]
        stack = self.stack_of(sp)
        for entry in state.callers or ():
            if self.stack_of(entry.sp) != stack:
                stack = self.stack_of(entry.sp)
                starts.append(entry.sp)
        pieces = []
        for start in starts:
            mapping = self.mappings.at(start)
            base = start - below & -8
            size = min(mapping.end - base, _MAX_STACK_BYTES) if mapping else 0
            pieces.append(BytesMemory(base, self.read(base, size)))
        memory = pieces[0] if len(pieces) == 1 else PiecewiseMemory(*pieces)
        return ThreadSnapshot(state.tid, state.registers, memory, False, 0, eintr=False, arch=AMD64)

    def is_true(self, callers: tuple[Entry, ...]) -> bool:
        """Whether all return addresses are unchanged in memory."""
        return all(self.word(entry.slot) == entry.pc for entry in callers if entry.slot)

    # -- stepping

    def begin(self, tid: int, callers: list[Entry]) -> None:
        """Set the callers of a thread's present frame, outermost first."""
        self._stacks.setdefault(tid, Stacks()).on(self.stack_of(self.registers(tid)[_SP])).extend(callers)

    def steps(self, tid: int) -> Iterator[State]:
        """Yield the state before each instruction, up to an `int3` or the thread's end."""
        stacks = self._stacks.setdefault(tid, Stacks())
        is_known, pending = True, 0
        now = self.registers(tid)
        while True:
            code = self.read(now[_PC], _MAX_INSTRUCTION_BYTES)
            stack = self.stack_of(now[_SP])
            callers = stacks.chain(stack)
            known = is_known and not any(self._is_rewritten(entry) for entry in callers)
            yield State(tid, now, callers if known else None, code)
            if code[:1] == b"\xcc":
                return
            number = self._step(tid, pending)
            if number is None:
                return
            before, now = now, self.registers(tid)
            if number not in (signal.SIGTRAP, 0):
                pending = number  # it is delivered by the next step; nothing has run
                continue
            if pending:
                self._signalled(stacks, before, now)
                pending = 0
            else:
                is_known = self._moved(stacks, before, now, code, is_known)

    def _signalled(self, stacks: Stacks, before: dict[int, int], now: dict[int, int]) -> None:
        sp, stack = now[_SP], self.stack_of(now[_SP])
        pair = _words(before[_SP], before[_PC])
        saved = sp + self.read(sp, _SIGNAL_FRAME_BYTES).index(pair)
        stacks.interrupt(stack, Entry(0, before[_PC], before[_SP], saved), self.stack_of(before[_SP]))
        stacks.on(stack).append(Entry(sp, self.word(sp), sp + 8))

    def _is_rewritten(self, entry: Entry) -> bool:
        return bool(entry.saved) and self.read(entry.saved, 16) != _words(entry.sp, entry.pc)

    def _moved(
        self, stacks: Stacks, before: dict[int, int], now: dict[int, int], code: bytes, was_known: bool
    ) -> bool:
        """Record what one instruction has done; return whether the true stack is known after it."""
        old, new = before[_SP], now[_SP]
        stack = self.stack_of(new)
        entries = stacks.on(stack)
        jumped = not before[_PC] <= now[_PC] <= before[_PC] + _MAX_INSTRUCTION_BYTES
        if code[:2] == b"\x0f\x05" and before[_RAX] == _SIGRETURN:
            stacks.return_from_signal(self.stack_of(old))
            stacks.leave(stack, new)  # a handler may have changed where the thread continues
            return True
        returned = code[:1] in (b"\xc3", b"\xc2") or code[:2] == b"\xf3\xc3"
        left = stacks.leave(stack, new)
        if jumped and new == old - 8 and 0 < self.word(new) - before[_PC] <= _MAX_INSTRUCTION_BYTES:
            entries.append(Entry(new, self.word(new), new + 8))
        if not was_known:
            if jumped and not entries:  # the first function on a stack of its own
                entries.append(Entry(new, self.word(new), new + 8))
            return jumped
        return returned or (stack == self.stack_of(old) and not left)

    def _step(self, tid: int, number: int) -> int | None:
        ptrace(PTRACE_SINGLESTEP, tid, 0, number)
        return self._wait(tid)

    def _wait(self, tid: int) -> int | None:
        """Return the signal that stopped a thread, or None at its end."""
        _, status = os.waitpid(tid, _WALL)
        if not os.WIFSTOPPED(status):
            return None
        if status >> 16 == _EVENT_CLONE:
            child = ctypes.c_ulong()
            ptrace(PTRACE_GETEVENTMSG, tid, 0, ctypes.addressof(child))
            os.waitpid(child.value, _WALL)
            self.threads.append(child.value)
            return self._step(tid, 0)
        return os.WSTOPSIG(status)


@contextmanager
def stepped(*words: str) -> Iterator[Stepped]:
    process = Stepped([str(word) for word in words])
    try:
        yield process
    finally:
        process.close()
