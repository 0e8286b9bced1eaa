"""Steps from code with known bytes: first functions of stacks, linkage stubs, signal trampolines.

No unwind table describes such code, or the table is wrong.  A pattern quotes instructions, in
the notation of `_pattern`.  Nothing is disassembled, so code that no pattern quotes stays unknown.

Sources, first functions: glibc sysdeps/unix/sysv/linux/x86_64/{clone,clone3,__start_context}.S,
sysdeps/x86_64/dl-machine.h, the same files of aarch64 (clone, clone3) and s390/s390-64 (clone,
clone3, dl-machine.h); musl src/thread/x86_64/clone.s, arch/x86_64/crt_arch.h;
Boost.Context src/asm/make_{x86_64_sysv,arm64_aapcs}_elf_gas.S, of which PHP's fibers have a copy.
Linkage stubs: AMD64 psABI section 5.2 (figure 5.2, and the IBT variant); AArch64: stubs of ld and lld;
s390x ELF ABI, "Procedure Linkage Table".
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from sfsample.core.arch import AARCH64, AMD64, S390X, Arch, SignalFrame
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.row import OUTERMOST, UnwindRow, entry_row
from sfsample.unwind.stepper import PcRange, only_this_pc

_PATTERN_BYTES = 96  # bytes before and after a pc that a pattern may cover
_RANGE_BYTES = 1024  # bytes before and after a pc that `_range_without` examines
_AS_REGEX = {"..": ".", "<": "(?P<here>", ">": ")", "(": "(?:", "'": "", " ": ""}
_TOKEN = re.compile(r"\.\.|(?<!,)[0-9a-f]{2}|[<>(' ]")  # token that is written differently in `re`


class _Pattern(NamedTuple):
    """A pattern with a group `here`, and the row for the addresses in that group."""

    text: str
    row: UnwindRow
    marker: bytes  # bytes that each match contains, for a quick test


@cache
def _compiled(text: str) -> re.Pattern[bytes]:
    """Compile a pattern at the first use: compiling all patterns would take 1/50 of a dump's time."""
    regex = _TOKEN.sub(lambda token: _AS_REGEX.get(token[0], rf"\x{token[0]}"), text)
    return re.compile(regex.encode(), re.DOTALL)


def _pattern(text: str, row: UnwindRow) -> _Pattern:
    """Return a pattern with its row and its marker.

    `text` has hexadecimal bytes, and `..` for any byte.  `<` and `>` enclose the addresses for which `row`
    is valid, `'` encloses the marker.  `(a|b)`, `[a-b]`, `?` and `{1,9}` are as in regular expressions.
    """
    marker = re.search("'(.*)'", text)
    marker_bytes = bytes.fromhex(re.sub("[<>]", "", marker[1])) if marker else b""
    return _Pattern(text, row, marker_bytes)


def _row_near(patterns: Iterable[_Pattern], frame: Frame, module: Module) -> UnwindRow | None:
    """Return the row of the first pattern that matches near the pc and has the pc in its group `here`."""
    first, text = module.code_near(frame.pc, _PATTERN_BYTES)
    candidates = (entry for entry in patterns if entry.marker in text)
    matches = ((entry.row, match) for entry in candidates for match in _compiled(entry.text).finditer(text))
    return next((row for row, match in matches if _is_in_group(frame, module, match, first)), None)


def _row_from(patterns: Iterable[_Pattern], start: int, frame: Frame, module: Module) -> UnwindRow | None:
    """Return the row of the first pattern that matches at `start` and has the pc in its group `here`."""
    if abs(start - frame.pc) > _PATTERN_BYTES:
        return None
    first, text = module.code_near(frame.pc, _PATTERN_BYTES)
    if not 0 <= start - first < len(text):
        return None
    matches = ((entry.row, _compiled(entry.text).match(text, start - first)) for entry in patterns)
    return next((row for row, match in matches if match and _is_in_group(frame, module, match, first)), None)


def _range_without(markers: Iterable[bytes], frame: Frame, module: Module) -> PcRange:
    """Return a range of addresses around the pc without a marker; only the pc if a marker is near."""
    first, text = module.code_near(frame.pc, _RANGE_BYTES + _PATTERN_BYTES)
    if any(marker in text for marker in markers):
        return only_this_pc(frame)
    return max(first, frame.pc - _RANGE_BYTES), min(first + len(text), frame.pc + _RANGE_BYTES)


def _is_in_group(frame: Frame, module: Module, match: re.Match[bytes], first: int) -> bool:
    """Return True if the frame's pc lies in the group `here` of a match in code that starts at `first`.

    If the group ends in a call, a return address may be the end of the group.  A return address at the start
    of the group usually belongs to the function before, which ends in a call.  If no call precedes the
    return address, other code has stored the address, so the address belongs to the group.
    """
    pc, begin, end = frame.pc, first + match.start("here"), first + match.end("here")
    if frame.exact:
        return begin <= pc < end
    return begin < pc <= end or (pc == begin and not module.follows_call(pc))


# -- first functions of stacks


def _address_or_zero(expression: str) -> Rule:
    return Rule(CFA, 0, deref=False, expression=bytes.fromhex(expression))


# Two threads run after the system call.  In the new thread, which has no caller, rax is 0.  In the thread
# that made the call, rax is not 0, and the return address is at rsp.  DW_OP_breg7 0, deref, breg0 0, lit0,
# ne, mul give the return address, or zero.
_AROUND_CLONE = entry_row(AMD64)._replace(ra=_address_or_zero("77 00 06 70 00 30 2e 1e"))
# AArch64: the same expression with x30 and x0 (breg30 0, breg0 0, lit0, ne, mul); s390x: with r14 and r2
_AROUND_CLONE_A64 = entry_row(AARCH64)._replace(ra=_address_or_zero("8e 00 70 00 30 2e 1e"))
_AROUND_CLONE3_S390X = entry_row(S390X)._replace(ra=_address_or_zero("7e 00 72 00 30 2e 1e"))
_AROUND_CLONE_S390X = _AROUND_CLONE3_S390X._replace(  # row for clone, which has saved r6 and r7
    registers=((6, Rule(CFA, -112, deref=True)), (7, Rule(CFA, -104, deref=True))),
    kept=tuple(sorted(S390X.callee_saved - {6, 7})),
)

_AMD64_ANYWHERE = (
    # glibc __start_context, to which the function of makecontext(3) returns (glibc's table is wrong):
    # mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call setcontext; mov %rax,%rdi; call exit
    _pattern(
        "<(f3 0f 1e fa)? '48 89 dc 48 8b 3c 24' 48 85 ff 74 .. e8 .. .. .. .. 48 89 c7 e8 .. .. .. ..>",
        OUTERMOST,
    ),
    # glibc clone, clone3: mov $56 or $435,%eax; syscall; test %rax,%rax; jl; je; ret
    _pattern("b8 (38 00|b3 01) 00 00 <'0f 05 48 85 c0 7c' .. 74 .. c3>", _AROUND_CLONE),
    # musl clone: syscall; test %eax,%eax; jne; xor %ebp,%ebp; pop %rdi; call *%r9
    _pattern("<0f 05 85 c0 75 ..> '31 ed 5f 41 ff d1'", _AROUND_CLONE),
    _pattern("0f 05 85 c0 75 .. <'31 ed 5f 41 ff d1'>", OUTERMOST),
    # Boost make_fcontext: a fiber begins with push %rbp; jmp *%rbx.  The pushed word is the return address of
    # the fiber's function, and points to: xor %rdi,%rdi; call _exit; hlt
    _pattern("<(f3 0f 1e fa)? '55 ff e3' (f3 0f 1e fa)? 48 31 ff e8 .. .. .. .. f4>", OUTERMOST),
)
_AMD64_AT_ENTRY = (
    # glibc and musl _start, from xor %ebp,%ebp to its first call
    _pattern("<(f3 0f 1e fa)? 48? 31 ed ..{0,40}? (e8|ff 15) .. .. .. ..>", OUTERMOST),
    # glibc's ld.so: mov %rsp,%rdi; call _dl_start; ...; xor %ebp,%ebp; call _dl_init; ...; jmp *%r12
    _pattern(
        "<(f3 0f 1e fa)? 48 89 e7 e8 .. .. .. .. (..{0,40}? 31 ed e8 .. .. .. .. (..{0,16}? 41 ff e4)?)?>",
        OUTERMOST,
    ),
)
_A64_ANYWHERE = (
    # glibc clone, clone3: svc #0; cmp x0, #0; b.eq; b.lt; ret
    _pattern("<'01 00 00 d4' 1f 00 00 f1 .. .. .. 54> .. .. .. 54 c0 03 5f d6", _AROUND_CLONE_A64),
    # Boost make_fcontext; a fiber's function returns to the end of this code: adr x1, . + 12;
    # str x1, [x0, #152]; ret; mov x0, #0; bl _exit
    _pattern("'61 00 00 10 01 4c 00 f9' c0 03 5f d6 <00 00 80 d2 .. .. .. [94-97]>", OUTERMOST),
)
_A64_AT_ENTRY = (
    # crt1.o's _start; the table of crt1.o is one instruction late: nop or bti c; mov x29, #0; mov x30, #0
    _pattern("<(1f 20 03|5f 24 03) d5> 1d 00 80 d2 1e 00 80 d2", OUTERMOST),
)
_S390X_ANYWHERE = (
    # glibc clone: svc; ltgr %r2,%r2; je; lmg %r6,%r7,48(%r15); jgl; clone3: without lmg
    _pattern("<0a .. 'b9 02 00 22 a7 84' .. ..> eb 67 f0 30 00 04 c0 44", _AROUND_CLONE_S390X),
    _pattern("<0a .. 'b9 02 00 22 a7 84' .. ..> c0 44", _AROUND_CLONE3_S390X),
)
_S390X_AT_ENTRY = (
    # glibc's ld.so: lgr %r2,%r15; aghi %r15,-160; xc 0(8,%r15),0(%r15); brasl %r14,_dl_start; ...; br %r8
    _pattern("<b9 04 00 2f a7 fb ff 60 d7 07 f0 00 f0 00 c0 e5 .. .. .. .. (..{0,80}? 07 f8)?>", OUTERMOST),
)
_ANYWHERE = {62: _AMD64_ANYWHERE, 183: _A64_ANYWHERE, 22: _S390X_ANYWHERE}  # key: e_machine
_AT_ENTRY = {62: _AMD64_AT_ENTRY, 183: _A64_AT_ENTRY, 22: _S390X_AT_ENTRY}


# -- linkage stubs


def _pushed(pushed_words: int) -> UnwindRow:
    """Return the row of a stub that has pushed this number of words after the return address."""
    return entry_row(AMD64)._replace(cfa=Rule(AMD64.sp, 8 + 8 * pushed_words, deref=False))


_AMD64_STUBS = (
    # jmp *GOT(%rip); push index; | jmp PLT0
    _pattern("<ff 25 .. .. .. .. 68 .. .. .. ..> e9 .. .. .. ..", _pushed(0)),
    _pattern("ff 25 .. .. .. .. 68 .. .. .. .. <e9 .. .. .. ..>", _pushed(1)),
    # endbr64; push index; | jmp PLT0 (perhaps with a bnd before, or nops after the jmp)
    _pattern("<f3 0f 1e fa 68 .. .. .. ..> f2? e9 .. .. .. ..", _pushed(0)),
    _pattern("f3 0f 1e fa 68 .. .. .. .. <f2? e9 .. .. .. ..>", _pushed(1)),
    # jmp *GOT(%rip); xchg %ax,%ax (.plt.got, and IFUNCs of static programs), or endbr64; jmp *GOT(%rip)
    _pattern("<ff 25 .. .. .. .. 66 90>", _pushed(0)),
    _pattern("<f3 0f 1e fa f2? ff 25 .. .. .. ..>", _pushed(0)),
    # PLT0: push GOT+8(%rip); | jmp *GOT+16(%rip)
    _pattern("<ff 35 .. .. .. ..> f2? ff 25 .. .. .. ..", _pushed(1)),
    _pattern("ff 35 .. .. .. .. <f2? ff 25 .. .. .. ..>", _pushed(2)),
)

_IN_X30 = entry_row(AARCH64)
_A64_PUSHED = _IN_X30._replace(cfa=Rule(AARCH64.sp, 16, deref=False), ra=Rule(CFA, -8, deref=True))
# adrp x16, GOT; ldr x17, [x16, ...]; add x16, x16, ... or nop; br x17
_A64_JUMP = "[10 30 50 70 90 b0 d0 f0] .. .. [90 b0 d0 f0] 11 .. .. f9 (10 .. .. 91|1f 20 03 d5) 20 02 1f d6"
_A64_STUBS = (
    # PLT0: stp x16, x30, [sp, #-16]!; | the jump
    _pattern(f"<f0 7b bf a9> {_A64_JUMP}", _IN_X30),
    _pattern(f"f0 7b bf a9 <{_A64_JUMP}>", _A64_PUSHED),
    # the jump, perhaps after bti c
    _pattern(f"<(5f 24 03 d5)? {_A64_JUMP}>", _IN_X30),
)
_IN_R14 = entry_row(S390X)
_S390X_STUBS = (
    # larl %r1,GOT; lg %r1,0(%r1); br %r1; basr %r1,%r0; lgf %r1,12(%r1); jg PLT0
    _pattern(
        "<c0 10 .. .. .. .. e3 10 10 00 00 04 07 f1 0d 10 e3 10 10 0c 00 14 c0 f4 .. .. .. ..>", _IN_R14
    ),
    # PLT0: stg %r1,56(%r15); larl %r1,GOT; mvc 48(8,%r15),8(%r1); lg %r1,16(%r1); br %r1
    _pattern("<e3 10 f0 38 00 24 c0 10 .. .. .. .. d2 07 f0 30 10 08 e3 10 10 10 00 04 07 f1>", _IN_R14),
)
_STUBS = {AMD64.machine: _AMD64_STUBS, AARCH64.machine: _A64_STUBS, S390X.machine: _S390X_STUBS}


# -- steppers


class StartStepper:
    """Ends walks at the first functions of stacks, and steps from clone(2)."""

    found = Found.START

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row "no caller", or the row of a clone system call, after which two threads run."""
        if module is None:
            return None
        entry, machine = module.address(module.image.entry), arch.machine
        at_entry = _row_from(_AT_ENTRY.get(machine, ()), entry, frame, module)
        return at_entry or _row_near(_ANYWHERE.get(machine, ()), frame, module)

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:
        """Return a range around the pc in which no stack begins."""
        entry = module.address(module.image.entry)
        markers = (pattern.marker for pattern in _ANYWHERE.get(arch.machine, ()))
        start, end = _range_without(markers, frame, module)
        near_entry = start - _PATTERN_BYTES <= entry <= end + _PATTERN_BYTES
        return only_this_pc(frame) if near_entry else (start, end)


class PltStepper:
    """Steps from a linkage stub (PLT), at an exact pc, to the function that called through the stub."""

    found = Found.PLT

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row at the instruction."""
        if module is None or not frame.exact:
            return None
        return _row_near(_STUBS.get(arch.machine, ()), frame, module)


@cache
def _signal_row(arch: Arch, kind: SignalFrame) -> UnwindRow:
    saved = {number: Rule(arch.sp, offset, deref=True) for number, offset in kind.saved}
    ra = saved.pop(arch.pc)
    return UnwindRow(cfa=saved[arch.sp], ra=ra, registers=tuple(saved.items()), signal=True)


class SignalFrameStepper:
    """Steps from a signal trampoline to the interrupted code.

    The kernel's layout of a signal frame is ABI (see `core/arches/`).  Tables are not used, because SFrame
    cannot express the layout, and the CFI of C libraries differs.  All registers are recovered.
    """

    found = Found.SIGNAL_FRAME

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that reads the saved registers if `frame.pc` is in a trampoline."""
        if module is None:
            return None
        for kind in arch.signal_frames:
            code = kind.code
            if module.code(frame.pc, len(code)) == code:
                return _signal_row(arch, kind)
            # the thread has not made the system call yet, and sp is the same as at the first instruction
            inside = len(code) - kind.call
            if frame.exact and module.code(frame.pc - inside, len(code)) == code:
                return _signal_row(arch, kind)
            # the thread is in that system call: a guess, as the kernel may have restored some registers
            if frame.exact and module.code(frame.pc - len(code), len(code)) == code:
                return _signal_row(arch, kind)._replace(guess=True)
        return None

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:
        """Return a range around the pc without a trampoline."""
        return _range_without((kind.code for kind in arch.signal_frames), frame, module)
