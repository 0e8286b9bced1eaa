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

_MACHINES = (AMD64.machine, AARCH64.machine)  # e_machine; `Arch` differs between programs (`ra_mask`)
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
_FREES_FRAME = b"\x48\x83\xc4"  # add $n, %rsp; the frame pointer may be the caller's
# mov %rbp, disp(%rsp); stur x29, [sp, #-8]
_STORES_FP = (b"\x48\x89\x6c\x24", b"\x48\x89\xac\x24", b"\xfd\x83\x1f\xf8")
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
    name, entered, has_x30 = function.name, module.vaddr(frame.pc) - function.entry, arch.pushed_ra is None
    # the function that mcall calls on the scheduler's stack never returns
    if name in _ENDS or (name == _MCALL and not frame.exact):
        return OUTERMOST
    row = _row_on_one_stack(function, size, frame, module, arch)
    if name == _CROSSCALL2 and size:
        is_early = has_x30 and frame.exact and entered <= _CROSSCALL2_SETUP_BYTES
        return entry_row(arch)._replace(cfa=row.cfa) if is_early else _crosscall2_row(row.cfa, module, arch)
    crossing = _crossing(row, name, module, arch, size + arch.entry_cfa)
    if not has_x30 or name not in (_MORESTACK, _MCALL):
        return crossing
    code = module.code(frame.pc - entered, max(0, entered - 4)) or b""
    is_noted = not frame.exact or _NOTES_PC in code
    return crossing._replace(on_goroutine=crossing) if is_noted else crossing


def _row_on_one_stack(function: GoFunction, size: int, frame: Frame, module: Module, arch: Arch) -> UnwindRow:
    """Return the row of a function that switches no stacks.

    On AArch64 the return address lies at sp, or is in x30; the caller's fp lies in the word below sp.
    """
    name, has_x30 = function.name, arch.pushed_ra is None
    pushed = _PUSHED_BYTES if has_x30 and name in _ENTERED_ANYWHERE else 0
    above = size + arch.entry_cfa + pushed
    cfa = Rule(arch.sp, above, deref=False)
    saved = -above if has_x30 else -_WORD  # place of the return address, relative to the CFA
    ra = Rule(CFA, saved, deref=True) if size or not has_x30 else Rule(arch.ra, 0, deref=False)
    registers: tuple[tuple[int, Rule], ...] = ((arch.fp, Rule(CFA, saved - _WORD, deref=True)),)
    kept: tuple[int, ...] = ()
    around = (module.code(frame.pc - 4, 8) or b"") if frame.exact else b""
    is_set_up = module.vaddr(frame.pc) - function.entry >= _FRAME_SETUP_BYTES
    if not size or around.startswith(_STORES_FP, 4) or (has_x30 and around.startswith(_LOADS_X29)):
        registers, kept = (), (arch.fp,)
    elif name in _WITHOUT_FRAME_POINTER:
        registers = ()
    elif name in _BY_FRAME_POINTER and is_set_up and not around.startswith(_FREES_FRAME, 4):
        cfa = Rule(arch.fp, _WORD - saved, deref=False)
    is_check = has_x30 and name in _STACK_CHECKS
    if pushed:
        registers = (*registers, (arch.ra, Rule(CFA, -pushed, deref=True)))
    elif is_check and frame.exact and not size:
        registers = ((arch.ra, Rule(_X3, 0, deref=False)),)
    is_exact = is_check or name in _ENTERED_ANYWHERE
    return UnwindRow(cfa, ra, registers, kept, signal=is_exact, switches=cfa.base == arch.fp)


def _crosscall2_row(cfa: Rule, module: Module, arch: Arch) -> UnwindRow:
    """Return the row of a function that saves registers for its caller in C."""
    first = -160 if arch.pushed_ra is None else -56 if _minor(module) < _NEW_CROSSCALL2 else -64
    numbers = (arch.fp, *(range(19, 29) if arch.pushed_ra is None else (3, 12, 13, 14, 15)))
    rules = (Rule(CFA, place, deref=True) for place in (-2 * _WORD, *range(first, 0, _WORD)))
    return UnwindRow(cfa, Rule(CFA, -_WORD, deref=True), tuple(zip(numbers, rules, strict=False)))


def _minor(module: Module) -> int:
    return (module.tables.go and module.tables.go.minor) or 0


def _crossing(row: UnwindRow, name: str, module: Module, arch: Arch, above: int) -> UnwindRow:
    """Return the row of a function that switches stacks; `row` itself if the function does not.

    The returned row is for the scheduler's stack; `on_goroutine` of the row is for the goroutine's stack.
    `above`: bytes from sp to the CFA, on the stack on which the function was called.
    """
    if name == _SYSTEMSTACK:
        return row._replace(cfa=Rule(GOROUTINE_SP, above, deref=False), switches=True, on_goroutine=row)
    if name in (_MORESTACK, _MCALL):
        noted = ((arch.ra, GOROUTINE_RA), (arch.fp, GOROUTINE_FP))
        registers = tuple((number, Rule(key, 0, deref=False)) for number, key in noted)
        cfa, pc = Rule(GOROUTINE_SP, 0, deref=False), Rule(GOROUTINE_PC, 0, deref=False)
        return UnwindRow(cfa, pc, registers, signal=row.signal, switches=True, on_goroutine=row)
    if name == _ASMCGOCALL:
        words = (
            (0, 8) if arch.pushed_ra is None else (0x30, 0x28) if _minor(module) < _NEW_ASMCGOCALL else (8, 0)
        )
        cfa = Rule(arch.sp, 0, deref=False, expression=_sp_before_c(above, arch.sp, *words))
        return row._replace(cfa=cfa, switches=True, on_goroutine=row)
    if name == _CGOCALLBACK:
        outer = SCHEDULER_SP, Rule(SCHEDULER_SP, 16 if arch.pushed_ra is None else 0, deref=True)
        cfa = Rule(SCHEDULER_SP, above, deref=False)
        return row._replace(
            on_goroutine=row._replace(cfa=cfa, registers=(*row.registers, outer), switches=True)
        )
    return row


def _sp_before_c(above: int, sp: int, goroutine: int, depth: int) -> bytes:
    """Return the DWARF expression for the CFA of `asmcgocall`, after the switch to the scheduler's stack.

    The frame has two words: the goroutine, and the distance from sp to the end of the goroutine's stack.  If
    the first word is 0, the stack was not switched, and the second word is sp.  Opcodes: DWARF 5, 7.7.1.
    """
    breg = 0x70 + sp
    plus = bytes([0x23, above])  # DW_OP_plus_uconst
    # plus_uconst, deref, breg, deref, minus
    from_goroutine = bytes([0x23, 8, 0x06, breg, depth, 0x06, 0x1C])
    # drop, breg, deref, skip
    from_scheduler = bytes([0x13, breg, depth, 0x06, 0x2F, len(from_goroutine), 0])
    test = bytes([breg, goroutine, 0x06, 0x12, 0x28, len(from_scheduler), 0])  # breg, deref, dup, bra
    return test + from_scheduler + from_goroutine + plus
