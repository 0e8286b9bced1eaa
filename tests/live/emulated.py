"""Steps a program of another architecture under qemu's user emulation, and records its true stack.

The true stack comes from the instructions, never from unwinding.  An instruction that leaves the address of
the next one in the return address register and jumps has opened a frame; the frame ends when the program is
back at that address with the sp of that time.  The frame of a signal ends at rt_sigreturn.  Where the true
stack is unknown, `stepping` says; that module is for AMD64, where calls push.

qemu maps the program's memory at the program's addresses, so it is read from qemu; registers and steps come
through qemu's gdb stub.  A step that delivers a signal runs up to the handler, so the program needs a
breakpoint there.  Of two threads only one is stepped: a new thread from its first jump on, while the old one
waits for its end.
"""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scripts.lib.gdb_stub import Stub
from sfsample.core.arch import AARCH64, S390X, Arch
from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.errors import FormatError
from sfsample.formats.elf.image import PF_X, PT_LOAD, ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from tests.builders.elf_builder import Load, elf
from tests.builders.maps import parse_maps
from tests.live.shadow import Entry, Mappings, Stacks
from tests.live.targets import wait_until

_S390X_ADDRESS = (1 << 63) - 1
_EXCLUSIVE, _LOAD, _STORE = 0x3FE0_0000, 0x0840_0000, 0x0800_0000  # of AArch64: ldxr, stxr
_MAX_RESERVED_INSTRUCTIONS = 16  # between the two
_BYTES_BELOW_SP = 128
_MAX_STACK_BYTES = 256 << 10
_PAGE = 4096
_BYTES_BEFORE_PAGE = 16
_SIGNAL_FRAME_BYTES = 8192  # on AArch64, with room for future registers


class State(NamedTuple):
    """A thread before an instruction; `callers` innermost first, None if they are unknown."""

    registers: dict[int, int]
    callers: tuple[Entry, ...] | None


class _Machine(NamedTuple):
    """Registers and system calls of a machine; registers by DWARF number."""

    words: tuple[int, ...]  # the first 8-byte words of the stub; 64: s390x's mask of the program status word
    number: int  # the register with the number of a system call
    clone: int
    sigreturn: int
    pair: tuple[int, int]  # two registers that are neighbours in the frame of a signal


_MACHINES = {
    AARCH64.machine: _Machine(tuple(range(33)), 8, 220, 139, (31, 32)),
    S390X.machine: _Machine((64, 65, *range(16)), 1, 120, 173, (65, 0)),
}


class Emulated:
    """A program that qemu runs."""

    def __init__(self, pid: int, stub: Stub, arch: Arch) -> None:
        self.arch = arch
        self._pid, self._stub, self._machine = pid, stub, _MACHINES[arch.machine]
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._images: dict[str, ElfImage] = {}
        self._mappings = Mappings(pid)
        self._trampolines: tuple[Mapping, ...] = ()
        self._stacks = Stacks()
        self.modules = ModuleMap(self._maps, lambda mapping: self._image(mapping.path))

    def close(self) -> None:
        os.close(self._memory)

    # -- execution

    def stop_at(self, *addresses: int) -> None:
        for address in addresses:
            self._stub.ask(f"Z0,{address:x},2")

    def run(self, callers: Callable[[dict[int, int]], list[Entry]]) -> None:
        """Continue to a breakpoint; `callers` finds the callers by the registers there, outermost first."""
        self._stub.ask("c")
        self.modules.refresh()
        now = self._registers()
        self._stacks.on(self.stack_of(now[self.arch.sp])).extend(callers(now))

    def steps(self) -> Iterator[State]:
        """Yield the state before each instruction, back to the first one, or to a signal or the end."""
        now, sp, pc = self._registers(), self.arch.sp, self.arch.pc
        first, is_known = now[pc], True
        while True:
            callers = self._stacks.chain(self.stack_of(now[sp]))
            known = is_known and not any(self._is_rewritten(entry) for entry in callers)
            yield State(now, callers if known else None)
            call = self._system_call(now)
            if call == self._machine.clone:
                stopped = self._into_thread(now[pc])
            elif call == self._machine.sigreturn:
                stopped = self._from_signal(callers[0].saved)
            else:
                stopped = self._step(now[pc])
            before, now = now, self._registers()
            if now[pc] == first or not stopped.startswith("T"):
                return
            if not stopped.startswith("T05"):
                is_known = self._signalled(now, stopped[1:3])
                now = self._registers()
            elif call != self._machine.clone:
                is_known = self._moved(before, now, is_known, call == self._machine.sigreturn)

    def _moved(self, before: dict[int, int], now: dict[int, int], was_known: bool, back: bool) -> bool:
        """Record what an instruction has done; return whether the true stack is known after it.

        `was_known`: whether it was known before; `back`: whether the instruction returned from a signal.
        """
        sp, pc, ra = self.arch.sp, self.arch.pc, self.arch.ra
        stack, following = self.stack_of(now[sp]), before[pc] + self._length(before[pc])
        entries, jumped = self._stacks.on(stack), now[pc] != following
        if back:
            self._stacks.return_from_signal(self.stack_of(before[sp]))
        left = self._stacks.leave(stack, now[sp])
        if entries and (now[pc], now[sp]) == entries[-1][1:3]:
            entries.pop()
            return True
        if back or (jumped and not was_known):  # code here has not called anything
            self._stacks.leave(stack, now[sp] + 1)
        called = jumped and now[ra] == following
        first_there = jumped and not (was_known or entries or now[ra] in (0, now[pc]))
        if called or first_there:
            entries.append(Entry(now[sp], now[ra], now[sp]))
        return jumped or (was_known and not left and stack == self.stack_of(before[sp]))

    def _signalled(self, before: dict[int, int], number: str) -> bool:
        """Deliver a signal and run up to its handler; the true stack is known there."""
        self._stub.ask(f"C{number}")
        now, sp, ra = self._registers(), self.arch.sp, self.arch.ra
        pair = self._pair(before[self.arch.pc], before[sp], before)
        saved = now[sp] + self.read(now[sp], _SIGNAL_FRAME_BYTES).index(pair)
        stack = self.stack_of(now[sp])
        self._stacks.interrupt(
            stack, Entry(0, before[self.arch.pc], before[sp], saved), self.stack_of(before[sp])
        )
        self._stacks.on(stack).append(Entry(now[sp], now[ra], now[sp]))
        self._note_trampoline(now[ra])
        return True

    def _into_thread(self, pc: int) -> str:
        """Continue to the new thread's own code: after the call, libc compares the result and branches."""
        code = self.read(pc + self._length(pc), 8)
        if self.arch.machine == AARCH64.machine:
            start = pc + 8 + 4 * (int.from_bytes(code[4:8], "little") >> 5 & 0x7FFFF)
        else:
            start = pc + 6 + 2 * int.from_bytes(code[6:8], "big")
        self.stop_at(start)
        self._stacks = Stacks()
        return self._stub.ask("c")

    def _from_signal(self, saved: int) -> str:
        """Continue to where a handler returns; a step would execute an instruction there too."""
        words = self.read(saved, 16)
        place = 8 * self._machine.pair.index(self.arch.pc)
        return self._go_to(int.from_bytes(words[place : place + 8], self.arch.byteorder))

    def _go_to(self, *addresses: int) -> str:
        """Continue to one of several addresses; return the stub's stop reply."""
        for address in addresses:
            self._stub.ask(f"Z0,{address:x},4")
        stopped = self._stub.ask("c")
        for address in addresses:
            self._stub.ask(f"z0,{address:x},4")
        return stopped

    def _system_call(self, now: dict[int, int]) -> int | None:
        """Return the system call number if the next instruction is a system call."""
        code = self.read(now[self.arch.pc], 4)
        if self.arch.machine == AARCH64.machine:
            return now[self._machine.number] if code == b"\x01\0\0\xd4" else None
        return (code[1] or now[self._machine.number]) if code[:1] == b"\x0a" else None

    def _step(self, pc: int) -> str:
        """Execute an instruction, or a whole load-store-exclusive sequence, which a step would make fail."""
        ends = self._ends_of_reservation(pc) if self.arch.machine == AARCH64.machine else []
        return self._go_to(*ends) if ends else self._stub.ask("s")

    def _ends_of_reservation(self, pc: int) -> list[int]:
        """Return where a sequence that begins with ldxr may continue: after stxr, or at a branch target."""
        code = self.read(pc, 4 * _MAX_RESERVED_INSTRUCTIONS)
        words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, len(code), 4)]
        if not words or words[0] & _EXCLUSIVE != _LOAD:
            return []
        stored = next(at for at, word in enumerate(words) if word & _EXCLUSIVE == _STORE)
        branches = [pc + 4 * (at + (word >> 5 & 0x7FFFF)) for at, word in enumerate(words[:stored])
                    if word & 0xFF00_0010 == 0x5400_0000]  # fmt: skip
        return [pc + 4 * (stored + 1), *branches]

    # -- state

    def stack_of(self, sp: int) -> int:
        """Return the end of the mapping; sp is there while the stack is empty."""
        return mapping.end if (mapping := self._mappings.at(sp - 1)) else 0

    def truth(self, state: State) -> list[tuple[int, int]]:
        """Return pc and sp of all frames, innermost first."""
        here = state.registers[self.arch.pc], state.registers[self.arch.sp]
        return [here, *((entry.pc, entry.sp) for entry in state.callers or ())]

    def snapshot(self, state: State) -> ThreadSnapshot:
        """Copy what sfsample copies: the stack, and those that signals have interrupted."""
        sps = (state.registers[self.arch.sp], *(entry.sp for entry in state.callers or ()))
        lowest = {self.stack_of(sp): sp for sp in reversed(sps)}
        pieces = (self._copy(low - _BYTES_BELOW_SP, end) for end, low in lowest.items())
        memory = PiecewiseMemory(*pieces)
        return ThreadSnapshot(1, dict(state.registers), memory, False, 0, eintr=False, arch=self.arch)

    def _copy(self, low: int, end: int) -> BytesMemory:
        return BytesMemory(low, self.read(low, min(end - low, _MAX_STACK_BYTES)), self.arch.byteorder)

    def read(self, address: int, size: int) -> bytes:
        """Return memory; b"" if it cannot be read."""
        try:
            return os.pread(self._memory, size, address)
        except OSError:
            return b""

    def _pair(self, pc: int, sp: int, registers: dict[int, int]) -> bytes:
        """Return two words as they are in the frame of a signal; the interrupted pc is one of them."""
        values = {**registers, self.arch.pc: pc, self.arch.sp: sp}
        return b"".join(values[number].to_bytes(8, self.arch.byteorder) for number in self._machine.pair)

    def _is_rewritten(self, entry: Entry) -> bool:
        """Whether a handler has changed where the thread will continue."""
        word = entry.pc.to_bytes(8, self.arch.byteorder)
        return bool(entry.saved) and word not in self.read(entry.saved, 16)

    def _note_trampoline(self, address: int) -> None:
        """Pretend that the page with the trampoline is mapped from a file; on a kernel it is in the vdso."""
        page = address & -_PAGE
        path = f"/trampoline-{page:x}"
        if path not in self._images:
            code = bytes(_BYTES_BEFORE_PAGE) + self.read(page, _PAGE)
            data = elf([Load(0, code, offset=_PAGE)], machine=self.arch.machine,
                       byteorder=self.arch.byteorder)  # fmt: skip
            self._images[path] = ElfImage(data, path)
            start, end = page - _BYTES_BEFORE_PAGE, page + _PAGE
            mapping = Mapping(start, end, True, True, _PAGE, "00:00", page, path, False)
            self._trampolines = (*self._trampolines, mapping)
            self.modules.refresh()

    def _registers(self) -> dict[int, int]:
        numbers = self._machine.words
        raw = bytes.fromhex(self._stub.ask("g")[: 16 * len(numbers)])
        found = {number: int.from_bytes(raw[8 * i : 8 * i + 8], self.arch.byteorder)
                 for i, number in enumerate(numbers)}  # fmt: skip
        if found.pop(64, None) is not None:
            found[self.arch.pc] &= _S390X_ADDRESS
        return found

    def _length(self, pc: int) -> int:
        """Return the size of an instruction; on s390x its first two bits state it."""
        if self.arch.machine != S390X.machine:
            return 4
        first = self.read(pc, 1)
        return (2, 4, 4, 6)[first[0] >> 6] if first else 0

    def _image(self, path: str) -> ElfImage:
        if path not in self._images:
            self._images[path] = ElfImage(Path(path).read_bytes(), path)
        return self._images[path]

    def _maps(self) -> tuple[Mapping, ...]:
        """Return the mappings with the program's permissions; qemu itself maps code without PROT_EXEC."""
        text = Path(f"/proc/{self._pid}/maps").read_text()
        emulator = os.readlink(f"/proc/{self._pid}/exe")
        trampolines = {mapping.start: mapping for mapping in self._trampolines}
        found = {m.start: m._replace(executable=m.is_file and m.path != emulator and self._is_code(m))
                 for m in parse_maps(text)}  # fmt: skip
        return tuple(sorted((found | trampolines).values()))

    def _is_code(self, mapping: Mapping) -> bool:
        try:
            image = self._image(mapping.path)
        except FormatError:  # ld.so.cache
            return False
        end = mapping.offset + mapping.end - mapping.start
        return image.machine == self.arch.machine and any(
            s.type == PT_LOAD and s.flags & PF_X and s.offset < end and mapping.offset < s.offset + s.filesz
            for s in image.segments
        )


def _connects(connection: socket.socket, place: Path) -> bool:
    try:
        connection.connect(str(place))
    except (FileNotFoundError, ConnectionRefusedError):  # qemu has not made it yet, or does not listen yet
        return False
    return True


@contextmanager
def emulated(arch: Arch, root: Path, words: list[str], directory: Path) -> Iterator[Emulated]:
    """Start a program whose libraries lie under `root`, stopped before its first instruction."""
    place = directory / "stub"
    command = [f"qemu-{arch.name}", "-g", place, "-L", root, *words]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                wait_until(lambda: _connects(connection, place), "qemu listens")
                program = Emulated(process.pid, Stub(connection), arch)
                try:
                    yield program
                finally:
                    program.close()
        finally:
            process.kill()
