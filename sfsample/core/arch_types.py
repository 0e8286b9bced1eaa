"""Types of the facts about a machine; the values lie in `core/arches/`, one file for each machine."""

from typing import Literal, NamedTuple

ByteOrder = Literal["little", "big"]

NT_PRSTATUS, NT_PRFPREG = 1, 2  # types of register sets: Linux include/uapi/linux/elf.h


class SignalFrame(NamedTuple):
    """What the kernel puts on the stack for a signal handler.  Offsets are bytes from sp at the trampoline.

    To find a signal frame in a stack copy, the unwinder searches for `mark`, or, where `mark` is b"", for the
    address of the trampoline, which the handler keeps on the stack.  The interrupted sp is saved `mark_to_sp`
    bytes from there.
    """

    code: bytes  # the trampoline: loads the system call number, where needed, and calls sigreturn
    call: int  # bytes of the calling instruction, the last of the trampoline
    saved: tuple[tuple[int, int], ...]  # (DWARF number, offset) of every register of the interrupted code
    mark: bytes
    mark_to_sp: int


class Arch(NamedTuple):
    """What the unwinder must know of a machine.  Sizes and offsets are bytes, registers are DWARF numbers."""

    name: str
    machine: int  # ELF e_machine
    byteorder: ByteOrder
    sp: int
    fp: int
    ra: int  # the register in which a call leaves the return address (AMD64: the column of the CFI table)
    pc: int  # the number under which a frame's pc is kept among its registers
    callee_saved: frozenset[int]  # survive a call unless CFI says otherwise
    red_zone: int  # bytes below sp that the ABI lets a leaf function use
    entry_cfa: int  # CFA - sp at the first instruction of a function
    signal_frames: tuple[SignalFrame, ...]
    pushed_ra: int | None = None  # offset from the CFA where a call stores the return address; None: in `ra`
    frame_records: bool = True  # the frame pointer points to two words: the caller's fp, the return address
    record_ends_frame: bool = False  # those two words are the uppermost of the frame, so the CFA is known
    sp_adjust: int = 0  # caller's sp = CFA + sp_adjust (s390x: CFA is sp at entry + 160)
    ra_mask: int = (1 << 64) - 1  # bits of a signed return address that are not its authentication code


class RegisterSet(NamedTuple):
    """One register set of the kernel: its note type, its bytes, and where each register is in it."""

    note: int
    size: int
    words: tuple[tuple[int, int], ...]  # (DWARF number, index of the 8-byte word)


class CoreWords(NamedTuple):
    """What a core file has of a thread besides its registers: indices of the 8-byte words of NT_PRSTATUS."""

    number: int  # of the system call, negative outside of one
    first_argument: int  # of the system call, as the thread made it
    thread: int  # the address of glibc's struct pthread
    tid_at: int  # bytes from there to the tid


class RegisterLayout(NamedTuple):
    """How the kernel shows registers and system calls: by ptrace, in core files, perf samples and /proc."""

    sets: tuple[RegisterSet, ...]  # those that unwinding needs, the general registers first
    event_bits: tuple[tuple[int, int], ...]  # (bit of PERF_SAMPLE_REGS_USER, DWARF number), ascending
    result: int  # DWARF number of the register with the result of a system call
    call: tuple[int, bytes]  # bytes of the system call instruction; the bytes that it begins with
    arguments: tuple[int, ...]  # DWARF numbers of the registers with the arguments of a system call, in order
    pending_result: int | None = None  # what `result` holds while a system call lasts; None: unknown
    core_words: CoreWords | None = None  # None: `result` has replaced the first argument

    @property
    def size(self) -> int:
        """Bytes of all sets together."""
        return sum(register_set.size for register_set in self.sets)

    def word(self, number: int) -> int:
        """Return the position of a register in the first set, in 8-byte words; KeyError: it is not there."""
        return dict(self.sets[0].words)[number]


class RelocationKind(NamedTuple):
    """What an ELF relocation type stores."""

    size: int  # bytes
    pc_relative: bool  # the value counts from the address of the relocated field


PC32, PC64 = RelocationKind(4, pc_relative=True), RelocationKind(8, pc_relative=True)
ABS32, ABS64 = RelocationKind(4, pc_relative=False), RelocationKind(8, pc_relative=False)
