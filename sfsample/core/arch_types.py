"""Defines the types for facts about a machine.  The values are in `core/arches/`, one file per machine."""

from typing import Literal, NamedTuple

ByteOrder = Literal["little", "big"]

NT_PRSTATUS, NT_PRFPREG = 1, 2  # types of register sets: Linux include/uapi/linux/elf.h


class SignalFrame(NamedTuple):
    """The kernel's frame on the stack for a signal handler.  Offsets are bytes from sp at the trampoline."""

    code: bytes  # instructions of the trampoline, which make the system call sigreturn
    call: int  # size of the last instruction, the system call
    saved: tuple[tuple[int, int], ...]  # (DWARF number, offset) of every register of the interrupted code


class Arch(NamedTuple):
    """The facts of a machine for the unwinder.  Sizes and offsets are bytes, registers are DWARF numbers."""

    name: str
    machine: int  # ELF e_machine
    byteorder: ByteOrder
    sp: int
    fp: int
    ra: int  # register with the return address after a call (AMD64: the column of RA in a CFI table)
    pc: int  # key of the pc in the registers of a frame
    callee_saved: frozenset[int]  # registers that a call preserves, unless CFI says otherwise
    red_zone: int  # bytes below sp that the ABI lets a leaf function use
    entry_cfa: int  # cfa = sp + entry_cfa at the first instruction of a function
    signal_frames: tuple[SignalFrame, ...]
    pushed_ra: int | None = None  # a call stores the return address at cfa + pushed_ra; None: in `ra`
    frame_records: bool = True  # fp points to two words: the caller's fp, the return address
    sp_adjust: int = 0  # caller's sp = cfa + sp_adjust (s390x: cfa is sp at entry + 160)
    ra_mask: int = (1 << 64) - 1  # return address = signed return address & ra_mask


class RegisterSet(NamedTuple):
    """One register set, as the kernel lays it out."""

    note: int  # type of the set's note in a core file
    size: int  # bytes
    words: tuple[tuple[int, int], ...]  # (DWARF number, index of the 8-byte word)


class CoreWords(NamedTuple):
    """Words of NT_PRSTATUS that are not general registers, by index (8-byte words)."""

    number: int  # word with the number of the system call; negative: the thread was in no system call
    first_argument: int  # word with the original first argument of the system call
    thread: int  # word with the address of glibc's struct pthread
    tid_at: int  # bytes from the start of struct pthread to the tid


class RegisterLayout(NamedTuple):
    """The layout of registers and system calls in ptrace, core files, perf samples and /proc."""

    sets: tuple[RegisterSet, ...]  # register sets that unwinding needs; the general registers come first
    event_bits: tuple[tuple[int, int], ...]  # (bit of PERF_SAMPLE_REGS_USER, DWARF number), ascending
    result: int  # DWARF number of the register with the result of a system call
    call: tuple[int, bytes]  # size of the system call instruction, and its first bytes
    arguments: tuple[int, ...]  # DWARF numbers of the registers with a system call's arguments, in order
    pending_result: int | None = None  # value of `result` while a system call lasts; None: unknown
    core_words: CoreWords | None = None  # None: a core file does not have the first argument

    @property
    def size(self) -> int:
        """Size of all register sets together, in bytes."""
        return sum(register_set.size for register_set in self.sets)

    def word(self, number: int) -> int:
        """Return the index of a register's 8-byte word in the first set.  Raises KeyError if absent there."""
        return dict(self.sets[0].words)[number]
