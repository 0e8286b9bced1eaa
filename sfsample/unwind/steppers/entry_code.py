"""Recognizes code in which stacks begin: a program's entry, a thread's first code, a coroutine's end.

It recognizes such code by its bytes, which the tables here quote.  No unwind table describes that code, or
one describes it wrongly.

Sources: glibc sysdeps/unix/sysv/linux/x86_64/{clone,clone3,__start_context}.S, sysdeps/x86_64/dl-machine.h,
the same of aarch64 (clone, clone3) and s390/s390-64 (clone, clone3, dl-machine.h);
musl src/thread/x86_64/clone.s, arch/x86_64/crt_arch.h; Go src/runtime/asm_amd64.s;
Boost.Context src/asm/make_{x86_64_sysv,arm64_aapcs}_elf_gas.S, of which PHP's fibers have a copy.
"""

from sfsample.core.arch import AARCH64, AMD64, S390X, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.core.stack import Found, Frame
from sfsample.modules.module import Module
from sfsample.unwind.code_patterns import PATTERN_BYTES, code_pattern, range_without, row_from, row_near
from sfsample.unwind.row import UnwindRow, entry_row
from sfsample.unwind.stepper import PcRange, only_this_pc

_OUTERMOST = UnwindRow(Rule(CFA, 0, deref=False), None)


def _address_or_zero(expression: str) -> Rule:
    return Rule(CFA, 0, deref=False, expression=bytes.fromhex(expression))


# Two threads run on from the system call.  In the new thread, which has no caller, rax is 0.  In the thread
# that made the call, rax is not 0, and the return address is at rsp.  DW_OP_breg7 0, deref, breg0 0, lit0,
# ne, mul give that address, or zero.
_AROUND_CLONE = entry_row(AMD64)._replace(ra=_address_or_zero("77 00 06 70 00 30 2e 1e"))
# the same with x30 and x0 (breg30 0, breg0 0, lit0, ne, mul), and with r14 and r2
_AROUND_CLONE_A64 = entry_row(AARCH64)._replace(ra=_address_or_zero("8e 00 70 00 30 2e 1e"))
_AROUND_CLONE3_S390X = entry_row(S390X)._replace(ra=_address_or_zero("7e 00 72 00 30 2e 1e"))
_AROUND_CLONE_S390X = _AROUND_CLONE3_S390X._replace(  # row for clone, which has saved r6 and r7
    registers=((6, Rule(CFA, -112, deref=True)), (7, Rule(CFA, -104, deref=True))),
    kept=tuple(sorted(S390X.callee_saved - {6, 7})),
)

_AMD64_ANYWHERE = (
    # glibc __start_context, to which the function of makecontext(3) returns; its table says that it has a
    # caller: mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call setcontext; mov %rax,%rdi; call exit
    code_pattern(
        "<(f3 0f 1e fa)? '48 89 dc 48 8b 3c 24' 48 85 ff 74 .. e8 .. .. .. .. 48 89 c7 e8 .. .. .. ..>",
        _OUTERMOST,
    ),
    # glibc clone, clone3: mov $56 or $435,%eax; syscall; test %rax,%rax; jl; je; ret
    code_pattern("b8 (38 00|b3 01) 00 00 <'0f 05 48 85 c0 7c' .. 74 .. c3>", _AROUND_CLONE),
    # musl clone: syscall; test %eax,%eax; jne; xor %ebp,%ebp; pop %rdi; call *%r9
    code_pattern("<0f 05 85 c0 75 ..> '31 ed 5f 41 ff d1'", _AROUND_CLONE),
    code_pattern("0f 05 85 c0 75 .. <'31 ed 5f 41 ff d1'>", _OUTERMOST),
    # Go runtime.goexit: a goroutine's function returns to its second instruction: nop; call; nop
    code_pattern("'90 <>e8' .. .. .. .. 90", _OUTERMOST),
    # Go runtime.mcall, after it has left the goroutine's stack for good: mov 56(%r14),%rsp; push %rax;
    # mov (%rdx),%r12; call *%r12; pop %rax; jmp.  Its table takes the word below for a return address.
    code_pattern("'49 8b 66 38 <50 4c 8b 22 41 ff d4'> 90? 58 e9", _OUTERMOST),
    # Boost make_fcontext: a fiber begins with push %rbp; jmp *%rbx.  The pushed word is the return address of
    # the fiber's function; it leads to: xor %rdi,%rdi; call _exit; hlt
    code_pattern("<(f3 0f 1e fa)? '55 ff e3' (f3 0f 1e fa)? 48 31 ff e8 .. .. .. .. f4>", _OUTERMOST),
)
_AMD64_AT_ENTRY = (
    # glibc and musl _start, from xor %ebp,%ebp to its first call
    code_pattern("<(f3 0f 1e fa)? 48? 31 ed ..{0,40}? (e8|ff 15) .. .. .. ..>", _OUTERMOST),
    # glibc's ld.so: mov %rsp,%rdi; call _dl_start; ...; xor %ebp,%ebp; call _dl_init; ...; jmp *%r12
    code_pattern(
        "<(f3 0f 1e fa)? 48 89 e7 e8 .. .. .. .. (..{0,40}? 31 ed e8 .. .. .. .. (..{0,16}? 41 ff e4)?)?>",
        _OUTERMOST,
    ),
)
_A64_ANYWHERE = (
    # glibc clone, clone3: svc #0; cmp x0, #0; b.eq; b.lt; ret
    code_pattern("<'01 00 00 d4' 1f 00 00 f1 .. .. .. 54> .. .. .. 54 c0 03 5f d6", _AROUND_CLONE_A64),
    # Boost make_fcontext: a fiber's function returns to its end: adr x1, . + 12; str x1, [x0, #152]; ret;
    # mov x0, #0; bl _exit
    code_pattern("'61 00 00 10 01 4c 00 f9' c0 03 5f d6 <00 00 80 d2 .. .. .. [94-97]>", _OUTERMOST),
)
_A64_AT_ENTRY = (
    # crt1.o's _start, whose table marks the end one instruction late: nop or bti c; mov x29, #0; mov x30, #0
    code_pattern("<(1f 20 03|5f 24 03) d5> 1d 00 80 d2 1e 00 80 d2", _OUTERMOST),
    # crt1.o's _start before glibc 2.26, which no table marks as the end: mov x29, #0; mov x30, #0; ...;
    # bl __libc_start_main
    code_pattern("<1d 00 80 d2 1e 00 80 d2 (..{4}){0,12}? ..{3} [94-97]>", _OUTERMOST),
)
_S390X_ANYWHERE = (
    # glibc clone: svc; ltgr %r2,%r2; je; lmg %r6,%r7,48(%r15); jgl; clone3: the same without lmg
    code_pattern("<0a .. 'b9 02 00 22 a7 84' .. ..> eb 67 f0 30 00 04 c0 44", _AROUND_CLONE_S390X),
    code_pattern("<0a .. 'b9 02 00 22 a7 84' .. ..> c0 44", _AROUND_CLONE3_S390X),
)
_S390X_AT_ENTRY = (
    # glibc's ld.so: lgr %r2,%r15; aghi %r15,-160; xc 0(8,%r15),0(%r15); brasl %r14,_dl_start; ...; br %r8
    code_pattern(
        "<b9 04 00 2f a7 fb ff 60 d7 07 f0 00 f0 00 c0 e5 .. .. .. .. (..{0,80}? 07 f8)?>", _OUTERMOST
    ),
)
_ANYWHERE = {62: _AMD64_ANYWHERE, 183: _A64_ANYWHERE, 22: _S390X_ANYWHERE}  # key: e_machine
_AT_ENTRY = {62: _AMD64_AT_ENTRY, 183: _A64_AT_ENTRY, 22: _S390X_AT_ENTRY}


class StartStepper:
    """Steps from, or ends at, code in which stacks begin."""

    found = Found.START

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row "no caller", or the row of a clone system call, from which two threads run on."""
        if module is None:
            return None
        entry, machine = module.address(module.image.entry), arch.machine
        at_entry = row_from(_AT_ENTRY.get(machine, ()), entry, frame, module)
        return at_entry or row_near(_ANYWHERE.get(machine, ()), frame, module)

    def reach(self, frame: Frame, module: Module, arch: Arch) -> PcRange:
        """Return addresses around the pc at which no stack begins."""
        entry = module.address(module.image.entry)
        markers = (pattern.marker for pattern in _ANYWHERE.get(arch.machine, ()))
        start, end = range_without(markers, frame, module)
        near_entry = start - PATTERN_BYTES <= entry <= end + PATTERN_BYTES
        return only_this_pc(frame) if near_entry else (start, end)
