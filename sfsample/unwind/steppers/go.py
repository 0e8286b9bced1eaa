"""Translates the frame depths of `.gopclntab` to unwind rows.

The table states the depth of the frame at every pc, in prologues and epilogues too.  A function of Go
preserves only the frame pointer for its caller.  For functions that switch stacks, the depth is not enough.
The names of these functions are the same from Go 1.19 to 1.27.  The row of such a function has a version
for each stack; `step.py` chooses the version for the stack in which sp lies.

Source: Go, src/runtime/traceback.go (unwinder), src/runtime/asm_amd64.s, src/runtime/asm_arm64.s.
"""

from sfsample.core.arch import AARCH64, AMD64, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import GOROUTINE_FP, GOROUTINE_PC, GOROUTINE_RA, GOROUTINE_SP, SCHEDULER_SP
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.gopclntab.table import GoFunction
from sfsample.modules.module import Module
from sfsample.unwind.row import OUTERMOST, UnwindRow, entry_row
from sfsample.unwind.stepper import ALL_PCS, PcRange, only_this_pc

_MACHINES = (AMD64.machine, AARCH64.machine)  # a program has an `Arch` of its own: the mask of its addresses
_WORD = 8
# functions at which stacks begin, and functions that leave a stack for good
_ENDS = {"runtime." + name for name in ("goexit", "mstart", "rt0_go", "gogo", "clone")}
_SYSTEMSTACK, _MCALL, _MORESTACK = "runtime.systemstack", "runtime.mcall", "runtime.morestack"
_ASMCGOCALL, _CGOCALLBACK, _CROSSCALL2 = "runtime.asmcgocall", "runtime.cgocallback", "crosscall2"
_STACK_CHECKS = (_MORESTACK, "runtime.morestack_noctxt")
# functions that call C code on the stack of the scheduler, and find their frame by the frame pointer
_BY_FRAME_POINTER = {"runtime.nanotime1", "runtime.walltime", "time.now", "runtime.vgetrandom1"}
_FRAME_SETUP_BYTES = 16  # bytes at the start of these functions, before the switch of sp
# functions that the runtime enters from an instruction that is no call
_ENTERED_ANYWHERE = {"runtime.sigpanic", "runtime.asyncPreempt"}
# functions that do not store the frame pointer at the top of their frame
_WITHOUT_FRAME_POINTER = {"runtime.rt0_go", "runtime.sigtramp", "runtime.sigprofNonGoWrapper"}
_NEW_CROSSCALL2, _NEW_ASMCGOCALL = 20, 22  # minor versions of Go in which the frame of the function changed
_FREES_FRAME = b"\x48\x83\xc4"  # add $n, %rsp
_STORES_RBP = (b"\x48\x89\x6c\x24", b"\x48\x89\xac\x24")  # mov %rbp, disp(%rsp)
_STORES_X29 = b"\xfd\x83\x1f\xf8"  # stur x29, [sp, #-8]
_LOADS_X29 = (b"\xfd\x83\x5f\xf8", b"\xfd\xfb\x7f\xa9")  # ldur x29, [sp, #-8]; ldp x29, x30, [sp, #-8]
_NOTES_PC = b"\x9e\x23\x00\xf9"  # str x30, [x28, #64]: notes pc in the goroutine; x30 changes later
_X3 = 3  # register with the caller's return address at a call of morestack
_PUSHED_BYTES = 16  # AArch64: bytes that the runtime pushes, with x30, when it enters such a function
_CROSSCALL2_SETUP_BYTES = 48  # AArch64: bytes at the start of crosscall2, before it stores x29 and x30


class GoStepper:
    """Steps from Go code."""

    found = Found.GO

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that follows from the depth of the frame."""
        found = _depth_at(module, frame.pc, frame.lookup_pc) if arch.machine in _MACHINES else None
        return _row(found[0], found[1], frame, module, arch) if found and module else None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return the addresses at which the frame has the same depth."""
        if module.tables.go is None:
            return ALL_PCS
        found = _depth_at(module, frame.pc, frame.pc)
        if found is None or found[0].name in (*_BY_FRAME_POINTER, *_STACK_CHECKS, _MCALL, _CROSSCALL2):
            return only_this_pc(frame)
        _, _, start, end = found
        if module.vaddr(frame.pc) <= start:  # the first instruction, which may store the frame pointer
            return only_this_pc(frame)
        return module.address(start + 1), module.address(end)


def _depth_at(module: Module | None, pc: int, lookup_pc: int) -> tuple[GoFunction, int, int, int] | None:
    """Return the function at `pc`, and the depth of its frame; see `GoTable.depth_at`."""
    table = module.tables.go if module else None
    if module is None or table is None:
        return None
    try:
        function = table.function_at(module.vaddr(pc))
        depth = table.depth_at(function, max(module.vaddr(lookup_pc), function.entry)) if function else None
    except FormatError as damage:
        module.note_damage(damage)
        return None
    return (function, *depth) if function and depth else None


def _row(function: GoFunction, size: int, frame: Frame, module: Module, arch: Arch) -> UnwindRow:
    """Return the row of a frame of `size` bytes."""
    name = function.name
    # the function that mcall calls on the scheduler's stack never returns
    if name in _ENDS or (name == _MCALL and not frame.exact):
        return OUTERMOST
    entered = module.vaddr(frame.pc) - function.entry
    if arch.machine == AARCH64.machine:
        return _aarch64_row(name, size, frame, module.code(frame.pc - entered, entered + 4) or b"")
    cfa = Rule(arch.sp, size + arch.entry_cfa, deref=False)
    may_switch = name in _BY_FRAME_POINTER and size and entered >= _FRAME_SETUP_BYTES
    if may_switch and module.code(frame.pc, 3) != _FREES_FRAME:  # where fp may be the caller's already
        cfa = Rule(arch.fp, 2 * _WORD, deref=False)
    registers: tuple[tuple[int, Rule], ...] = ((arch.fp, Rule(CFA, -2 * _WORD, deref=True)),)
    kept: tuple[int, ...] = ()
    if not size or (frame.exact and module.code(frame.pc, 4) in _STORES_RBP):  # fp is not stored yet
        registers, kept = (), (arch.fp,)
    elif name in _WITHOUT_FRAME_POINTER:
        registers = ()
    ra, is_entered = Rule(CFA, -_WORD, deref=True), name in _ENTERED_ANYWHERE
    row = UnwindRow(cfa, ra, registers, kept, is_entered, switches=cfa.base == arch.fp)
    minor = (module.tables.go and module.tables.go.minor) or 0
    if name == _CROSSCALL2 and size:  # function that saves rbx and r12 to r15 for its caller in C
        lowest = -56 if minor < _NEW_CROSSCALL2 else -64
        rules = (Rule(CFA, lowest + _WORD * index, deref=True) for index in range(5))
        return row._replace(registers=(*registers, *zip((3, 12, 13, 14, 15), rules, strict=True)))
    words_of_c = (0x30, 0x28) if minor < _NEW_ASMCGOCALL else (8, 0)
    return _crossing(row, name, arch, size + arch.entry_cfa, words_of_c=words_of_c, saved_sp=0)


def _aarch64_row(name: str, size: int, frame: Frame, code: bytes) -> UnwindRow:
    """Return the row on AArch64: the return address is at sp, and the caller's fp is in the word below.

    `code`: the function up to the end of the instruction at the pc.
    """
    arch = AARCH64
    entered, before = len(code) - 4, code[-8:-4]
    if name == _CROSSCALL2:
        if frame.exact and (not size or entered <= _CROSSCALL2_SETUP_BYTES):
            return entry_row(arch)._replace(cfa=Rule(arch.sp, size, deref=False))
        saved = (*range(19, 29), arch.fp, arch.ra)  # pairs; eight other registers lie between x28 and x29
        places = (*range(-160, -80, 8), -16, -8)
        rules = tuple((number, Rule(CFA, at, deref=True)) for number, at in zip(saved, places, strict=True))
        return UnwindRow(Rule(arch.sp, size, deref=False), Rule(CFA, -8, deref=True), rules)
    pushed = _PUSHED_BYTES if name in _ENTERED_ANYWHERE else 0
    above = size + pushed
    cfa = Rule(arch.sp, above, deref=False)
    ra = Rule(CFA, -above, deref=True) if size else Rule(arch.ra, 0, deref=False)
    registers: tuple[tuple[int, Rule], ...] = ((arch.fp, Rule(CFA, -above - _WORD, deref=True)),)
    kept: tuple[int, ...] = ()
    if not size or (frame.exact and (code[-4:] == _STORES_X29 or before in _LOADS_X29)):
        registers, kept = (), (arch.fp,)
    elif name in _BY_FRAME_POINTER and entered >= _FRAME_SETUP_BYTES:
        cfa = Rule(arch.fp, _WORD + size, deref=False)
    if pushed:
        registers = (*registers, (arch.ra, Rule(CFA, -pushed, deref=True)))
    elif name in _STACK_CHECKS and frame.exact and not size:
        registers = ((arch.ra, Rule(_X3, 0, deref=False)),)
    row = UnwindRow(
        cfa, ra, registers, kept,
        signal=bool(pushed) or name in _STACK_CHECKS, switches=cfa.base == arch.fp,
    )  # fmt: skip
    crossing = _crossing(row, name, arch, above, words_of_c=(0, 8), saved_sp=16)
    is_noted = not frame.exact or _NOTES_PC in code[:-8]
    return crossing._replace(on_goroutine=crossing) if name in (_MORESTACK, _MCALL) and is_noted else crossing


def _crossing(
    row: UnwindRow, name: str, arch: Arch, above: int, *, words_of_c: tuple[int, int], saved_sp: int
) -> UnwindRow:
    """Return the row of a function that switches stacks; `row` itself if the function does not.

    The returned row is for the scheduler's stack; `on_goroutine` of the row is for the goroutine's stack.
    `above`: bytes from sp to the CFA, on the stack on which the function was called.  `words_of_c`: see
    `_sp_before_c`.  `saved_sp`: offset of the word with the outer SCHEDULER_SP in the frame of `cgocallback`.
    """
    if name == _SYSTEMSTACK:
        return row._replace(cfa=Rule(GOROUTINE_SP, above, deref=False), switches=True, on_goroutine=row)
    if name in (_MORESTACK, _MCALL):
        pc, fp = Rule(GOROUTINE_PC, 0, deref=False), (arch.fp, Rule(GOROUTINE_FP, 0, deref=False))
        ra = (arch.ra, Rule(GOROUTINE_RA, 0, deref=False))
        return row._replace(cfa=Rule(GOROUTINE_SP, 0, deref=False), ra=pc, registers=(fp, ra), kept=(),
                            switches=True, on_goroutine=row)  # fmt: skip
    if name == _ASMCGOCALL:
        cfa = Rule(arch.sp, 0, deref=False, expression=_sp_before_c(above, arch.sp, words_of_c))
        return row._replace(cfa=cfa, switches=True, on_goroutine=row)
    if name == _CGOCALLBACK:
        outer = SCHEDULER_SP, Rule(SCHEDULER_SP, saved_sp, deref=True)
        cfa = Rule(SCHEDULER_SP, above, deref=False)
        return row._replace(
            on_goroutine=row._replace(cfa=cfa, registers=(*row.registers, outer), switches=True)
        )
    return row


def _sp_before_c(above: int, sp: int, words: tuple[int, int]) -> bytes:
    """Return the DWARF expression for the CFA of `asmcgocall`, after the switch to the scheduler's stack.

    The frame has two words: the goroutine, and the distance from sp to the end of the goroutine's stack.  If
    the first word is 0, the stack was not switched, and the second word is sp.  `words`: offsets of the two.
    Opcodes: DWARF 5, 7.7.1.
    """
    (goroutine, depth), breg = words, 0x70 + sp
    plus = bytes([0x23, above])  # DW_OP_plus_uconst
    # plus_uconst, deref, breg, deref, minus
    from_goroutine = bytes([0x23, 8, 0x06, breg, depth, 0x06, 0x1C])
    # drop, breg, deref, skip
    from_scheduler = bytes([0x13, breg, depth, 0x06, 0x2F, len(from_goroutine), 0])
    test = bytes([breg, goroutine, 0x06, 0x12, 0x28, len(from_scheduler), 0])  # breg, deref, dup, bra
    return test + from_scheduler + from_goroutine + plus
