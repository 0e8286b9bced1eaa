"""Steps from linkage stubs (PLT) that no table describes: those of lld, of AArch64, of s390x's libraries.

It answers only for an exact pc, in a stub that it recognizes by its bytes.  All stubs of a kind are alike, so
each instruction has a fixed row.

Source: AMD64 psABI section 5.2 (figure 5.2, and the IBT variant); for AArch64 what ld and lld write; s390x
ELF ABI, "Procedure Linkage Table".
"""

from sfsample.core.arch import AARCH64, AMD64, S390X, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.code_patterns import code_pattern, row_near
from sfsample.unwind.row import UnwindRow, entry_row


def _row(pushed_words: int) -> UnwindRow:
    """Return the row of a stub that has pushed this number of words after the return address."""
    return entry_row(AMD64)._replace(cfa=Rule(AMD64.sp, 8 + 8 * pushed_words, deref=False))


_AMD64_STUBS = (
    # jmp *GOT(%rip); push index; | jmp PLT0
    code_pattern("<ff 25 .. .. .. .. 68 .. .. .. ..> e9 .. .. .. ..", _row(0)),
    code_pattern("ff 25 .. .. .. .. 68 .. .. .. .. <e9 .. .. .. ..>", _row(1)),
    # endbr64; push index; | jmp PLT0 (with a bnd before it, or nops behind it)
    code_pattern("<f3 0f 1e fa 68 .. .. .. ..> f2? e9 .. .. .. ..", _row(0)),
    code_pattern("f3 0f 1e fa 68 .. .. .. .. <f2? e9 .. .. .. ..>", _row(1)),
    # endbr64; jmp *GOT(%rip)
    code_pattern("<f3 0f 1e fa f2? ff 25 .. .. .. ..>", _row(0)),
    # PLT0: push GOT+8(%rip); | jmp *GOT+16(%rip)
    code_pattern("<ff 35 .. .. .. ..> f2? ff 25 .. .. .. ..", _row(1)),
    code_pattern("ff 35 .. .. .. .. <f2? ff 25 .. .. .. ..>", _row(2)),
)

_IN_X30 = entry_row(AARCH64)
_A64_PUSHED = _IN_X30._replace(cfa=Rule(AARCH64.sp, 16, deref=False), ra=Rule(CFA, -8, deref=True))
# adrp x16, GOT; ldr x17, [x16, ...]; add x16, x16, ... or nop; br x17
_A64_JUMP = "[10 30 50 70 90 b0 d0 f0] .. .. [90 b0 d0 f0] 11 .. .. f9 (10 .. .. 91|1f 20 03 d5) 20 02 1f d6"
_A64_STUBS = (
    # PLT0: stp x16, x30, [sp, #-16]!; | the jump
    code_pattern(f"<f0 7b bf a9> {_A64_JUMP}", _IN_X30),
    code_pattern(f"f0 7b bf a9 <{_A64_JUMP}>", _A64_PUSHED),
    # the jump, which bti c may precede
    code_pattern(f"<(5f 24 03 d5)? {_A64_JUMP}>", _IN_X30),
)
_IN_R14 = entry_row(S390X)
_S390X_STUBS = (
    # larl %r1,GOT; lg %r1,0(%r1); br %r1; basr %r1,%r0; lgf %r1,12(%r1); jg PLT0
    code_pattern(
        "<c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 0d 10 e3 10 10 0c 00 14 c0 f4 .. .. .. ..>", _IN_R14
    ),
    # PLT0: stg %r1,56(%r15); larl %r1,GOT; mvc 48(8,%r15),8(%r1); lg %r1,16(%r1); br %r1
    code_pattern("<e3 10 f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1>", _IN_R14),
)
_STUBS = {AMD64.machine: _AMD64_STUBS, AARCH64.machine: _A64_STUBS, S390X.machine: _S390X_STUBS}


class PltStepper:
    """Steps from a stub to the function that called through it."""

    found = Found.PLT

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row at the instruction."""
        if module is None or not frame.exact:
            return None
        return row_near(_STUBS.get(arch.machine, ()), frame, module)
