"""A program of another architecture, stepped under qemu's user emulation, and the truth about its stack.

Law: the truth comes from watching, never from unwinding.  After an instruction that has left the address of
the next one in the return address register and gone elsewhere, a frame is open; it is there until the program
is back at that address with the sp of then.  (`stepping` is the same for AMD64, whose calls push.)

qemu has the program's memory at the same addresses of its own, so it is read there; registers and steps come
through its gdb stub.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from scripts.lib.gdb_stub import Stub
from sfsample.arch import AARCH64, S390X, Arch
from sfsample.errors import FormatError
from sfsample.formats.elf import PF_X, PT_LOAD, ElfImage
from sfsample.memory import BytesMemory
from sfsample.model import ThreadSnapshot
from sfsample.modules.index import ModuleIndex
from sfsample.modules.maps import Mapping, parse_maps
from tests.live.targets import wait_until

# what the stub's first 8-byte words are, by DWARF number; 64: the mask of s390x's program status word
_WORDS = {AARCH64.machine: tuple(range(33)), S390X.machine: (64, 65, *range(16))}
_S390X_ADDRESS = (1 << 63) - 1
_EXCLUSIVE, _LOAD, _STORE = 0x3FE0_0000, 0x0840_0000, 0x0800_0000  # of AArch64: ldxr, stxr
_LONGEST = 16  # instructions between the two
_BELOW = 128
_MOST = 64 << 10


class Call(NamedTuple):
    """A frame's caller: where it goes on, and its sp."""

    pc: int
    sp: int


class State(NamedTuple):
    """The program before an instruction; callers outermost first."""

    registers: dict[int, int]
    callers: tuple[Call, ...]


class Emulated:
    """A program that qemu runs."""

    def __init__(self, pid: int, stub: Stub, arch: Arch) -> None:
        self.arch = arch
        self._pid, self._stub = pid, stub
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
        self._images: dict[str, ElfImage] = {}
        self._stack = range(0)
        self.index = ModuleIndex(self._maps, lambda mapping: self._image(mapping.path))

    def close(self) -> None:
        os.close(self._memory)

    def steps(self) -> Iterator[State]:
        """Yield the state before each instruction, from the first one on, up to a signal or the end."""
        calls: list[Call] = []
        now, sp, pc = self._registers(), self.arch.sp, self.arch.pc
        while True:
            yield State(now, tuple(calls))
            before, following = now, now[pc] + self._length(now[pc])
            if not self._step(now[pc]).startswith("T05"):
                return
            now = self._registers()
            while calls and (now[sp] > calls[-1].sp or (now[pc], now[sp]) == calls[-1]):
                calls.pop()
            if now[self.arch.ra] == following != now[pc]:
                calls.append(Call(following, before[sp]))

    def _step(self, pc: int) -> str:
        """Execute an instruction, or a sequence that holds a reservation, which a step would take from it."""
        ends = self._ends_of_reservation(pc) if self.arch.machine == AARCH64.machine else []
        if not ends:
            return self._stub.ask("s")
        for end in ends:
            self._stub.ask(f"Z0,{end:x},4")
        stopped = self._stub.ask("c")
        for end in ends:
            self._stub.ask(f"z0,{end:x},4")
        return stopped

    def _ends_of_reservation(self, pc: int) -> list[int]:
        """Return where a sequence that begins with ldxr may go on: behind its stxr, or by a branch."""
        code = os.pread(self._memory, 4 * _LONGEST, pc)
        words = [int.from_bytes(code[at : at + 4], "little") for at in range(0, len(code), 4)]
        if not words or words[0] & _EXCLUSIVE != _LOAD:
            return []
        stored = next(at for at, word in enumerate(words) if word & _EXCLUSIVE == _STORE)
        branches = [pc + 4 * (at + (word >> 5 & 0x7FFFF)) for at, word in enumerate(words[:stored])
                    if word & 0xFF00_0010 == 0x5400_0000]  # fmt: skip
        return [pc + 4 * (stored + 1), *branches]

    def snapshot(self, state: State) -> ThreadSnapshot:
        low = state.registers[self.arch.sp] - _BELOW
        if low not in self._stack:
            mappings = parse_maps(Path(f"/proc/{self._pid}/maps").read_text())
            self._stack = next(range(m.start, m.end) for m in mappings if m.start <= low < m.end)
        data = os.pread(self._memory, min(self._stack.stop - low, _MOST), low)
        memory = BytesMemory(low, data, self.arch.byteorder)
        return ThreadSnapshot(1, dict(state.registers), memory, False, 0, eintr=False, arch=self.arch)

    def _registers(self) -> dict[int, int]:
        numbers = _WORDS[self.arch.machine]
        raw = bytes.fromhex(self._stub.ask("g")[: 16 * len(numbers)])
        found = {number: int.from_bytes(raw[8 * i : 8 * i + 8], self.arch.byteorder)
                 for i, number in enumerate(numbers)}  # fmt: skip
        if found.pop(64, None) is not None:
            found[self.arch.pc] &= _S390X_ADDRESS
        return found

    def _length(self, pc: int) -> int:
        """Return the size of an instruction; on s390x its first two bits tell."""
        if self.arch.machine != S390X.machine:
            return 4
        return (2, 4, 4, 6)[os.pread(self._memory, 1, pc)[0] >> 6]

    def _image(self, path: str) -> ElfImage:
        if path not in self._images:
            self._images[path] = ElfImage(Path(path).read_bytes(), path)
        return self._images[path]

    def _maps(self) -> tuple[Mapping, ...]:
        """Return the mappings as the program sees them: qemu itself needs no right to execute them."""
        text = Path(f"/proc/{self._pid}/maps").read_text()
        ours = os.readlink(f"/proc/{self._pid}/exe")
        return tuple(m._replace(executable=m.is_file and m.path != ours and self._is_code(m))
                     for m in parse_maps(text))  # fmt: skip

    def _is_code(self, mapping: Mapping) -> bool:
        try:
            image = self._image(mapping.path)
        except FormatError:  # the loader's cache
            return False
        end = mapping.offset + mapping.end - mapping.start
        return image.machine == self.arch.machine and any(
            s.type == PT_LOAD and s.flags & PF_X and s.offset < end and mapping.offset < s.offset + s.filesz
            for s in image.segments
        )


@contextmanager
def emulated(arch: Arch, root: Path, words: list[str], directory: Path) -> Iterator[Emulated]:
    """Start a program whose libraries lie under `root`, stopped before its first instruction."""
    place = directory / "stub"
    command = [f"qemu-{arch.name}", "-g", place, "-L", root, *words]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            wait_until(place.exists, "qemu listens")
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(place))
                program = Emulated(process.pid, Stub(connection), arch)
                try:
                    yield program
                finally:
                    program.close()
        finally:
            process.kill()
