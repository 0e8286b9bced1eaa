"""Translates the frame depths of `.gopclntab` to unwind rows.

The table states the depth of the frame at every pc, in prologues and epilogues too.  A function of Go
preserves only the frame pointer for its caller.  For functions that switch stacks, the depth is not enough.
The names of these functions are the same from Go 1.19 to 1.27.  The row of such a function has a version
for each stack; `step.py` chooses the version for the stack in which sp lies.

Source: Go, src/runtime/traceback.go (unwinder), src/runtime/asm_amd64.s, src/runtime/asm_arm64.s.
"""

from sfsample.core.arch import AARCH64, AMD64, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.snapshot import GOROUTINE_FP, GOROUTINE_PC, GOROUTINE_SP, SCHEDULER_SP
from sfsample.core.stack import Found, Frame
from sfsample.errors import FormatError
from sfsample.formats.gopclntab.table import GoFunction
from sfsample.modules.module import Module
from sfsample.unwind.row import OUTERMOST, UnwindRow
from sfsample.unwind.stepper import ALL_PCS, PcRange, only_this_pc

_WORD = 8
# functions at which stacks begin, and functions that leave a stack for good
_ENDS = {"runtime." + name for name in ("goexit", "mstart", "rt0_go", "gogo", "clone")}
_SYSTEMSTACK, _MCALL, _MORESTACK = "runtime.systemstack", "runtime.mcall", "runtime.morestack"
_ASMCGOCALL, _CGOCALLBACK, _CROSSCALL2 = "runtime.asmcgocall", "runtime.cgocallback", "crosscall2"
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
_STORES_X29 = (b"\xfd\x83\x1f\xf8",)  # stur x29, [sp, #-8]


class GoStepper:
    """Steps from Go code."""

    found = Found.GO

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that follows from the depth of the frame."""
        found = _depth_at(module, frame.pc, frame.lookup_pc) if arch in (AMD64, AARCH64) else None
        return _row(found[0], found[1], frame, module, arch) if found and module else None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:  # noqa: ARG002 - the protocol
        """Return the addresses at which the frame has the same depth."""
        if module.tables.go is None:
            return ALL_PCS
        found = _depth_at(module, frame.pc, frame.pc)
        if found is None or found[0].name in _BY_FRAME_POINTER:
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
    cfa = Rule(arch.sp, size + arch.entry_cfa, deref=False)
    if arch is AMD64:
        ra, fp = Rule(CFA, -_WORD, deref=True), Rule(CFA, -2 * _WORD, deref=True)
        if name in _BY_FRAME_POINTER and _may_be_switched(function, size, module.vaddr(frame.pc), module):
            cfa = Rule(arch.fp, 2 * _WORD, deref=False)
    else:
        ra = Rule(CFA, -size, deref=True) if size else Rule(arch.ra, 0, deref=False)
        fp = Rule(CFA, -size - _WORD, deref=True)
    registers: tuple[tuple[int, Rule], ...] = ((arch.fp, fp),)
    kept: tuple[int, ...] = ()
    code = module.code(frame.pc, 4) if frame.exact else None
    if not size or code in (_STORES_RBP if arch is AMD64 else _STORES_X29):  # fp is not stored yet
        registers, kept = (), (arch.fp,)
    elif name in _WITHOUT_FRAME_POINTER:
        registers = ()
    row = UnwindRow(cfa, ra, registers, kept, signal=name in _ENTERED_ANYWHERE, switches=cfa.base == arch.fp)
    if arch is not AMD64:
        return row
    minor = (module.tables.go and module.tables.go.minor) or 0
    if name == _CROSSCALL2 and size:  # function that saves rbx and r12 to r15 for its caller in C
        lowest = -56 if minor < _NEW_CROSSCALL2 else -64
        rules = (Rule(CFA, lowest + _WORD * index, deref=True) for index in range(5))
        return row._replace(registers=(*registers, *zip((3, 12, 13, 14, 15), rules, strict=True)))
    return _crossing(row, name, size + arch.entry_cfa, is_old=minor < _NEW_ASMCGOCALL)


def _may_be_switched(function: GoFunction, size: int, vaddr: int, module: Module) -> bool:
    """Return True if sp may lie on another stack; at the end of the function, fp may be the caller's."""
    code = module.code(module.address(vaddr), len(_FREES_FRAME))
    return size > 0 and vaddr - function.entry >= _FRAME_SETUP_BYTES and code != _FREES_FRAME


def _crossing(row: UnwindRow, name: str, above: int, *, is_old: bool) -> UnwindRow:
    """Return the row of a function that switches stacks; `row` itself if the function does not.

    The returned row is for the scheduler's stack; `on_goroutine` of the row is for the goroutine's stack.
    `above`: bytes from sp to the CFA, on the stack on which the function was called.
    """
    if name == _SYSTEMSTACK:
        return row._replace(cfa=Rule(GOROUTINE_SP, above, deref=False), switches=True, on_goroutine=row)
    if name in (_MORESTACK, _MCALL):
        pc, fp = Rule(GOROUTINE_PC, 0, deref=False), (AMD64.fp, Rule(GOROUTINE_FP, 0, deref=False))
        return UnwindRow(Rule(GOROUTINE_SP, 0, deref=False), pc, (fp,), switches=True, on_goroutine=row)
    if name == _ASMCGOCALL:
        cfa = Rule(AMD64.sp, 0, deref=False, expression=_sp_before_c(above, is_old=is_old))
        return row._replace(cfa=cfa, switches=True, on_goroutine=row)
    if name == _CGOCALLBACK:
        outer = SCHEDULER_SP, Rule(SCHEDULER_SP, 0, deref=True)
        cfa = Rule(SCHEDULER_SP, above, deref=False)
        return row._replace(
            on_goroutine=row._replace(cfa=cfa, registers=(*row.registers, outer), switches=True)
        )
    return row


def _sp_before_c(above: int, *, is_old: bool) -> bytes:
    """Return the DWARF expression for the CFA of `asmcgocall`, after the switch to the scheduler's stack.

    The frame has two words: the goroutine, and the distance from sp to the end of the goroutine's stack.  If
    the first word is 0, the stack was not switched, and the second word is sp.  Opcodes: DWARF 5, 7.7.1.
    """
    goroutine, depth = (0x30, 0x28) if is_old else (8, 0)
    plus = bytes([0x23, above])  # DW_OP_plus_uconst
    # plus_uconst, deref, breg7, deref, minus
    from_goroutine = bytes([0x23, 8, 0x06, 0x77, depth, 0x06, 0x1C])
    # drop, breg7, deref, skip
    from_scheduler = bytes([0x13, 0x77, depth, 0x06, 0x2F, len(from_goroutine), 0])
    test = bytes([0x77, goroutine, 0x06, 0x12, 0x28, len(from_scheduler), 0])  # breg7, deref, dup, bra
    return test + from_scheduler + from_goroutine + plus
