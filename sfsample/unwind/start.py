"""Where stacks begin: a program's entry, a thread's first instructions, a coroutine's end.

Law: answers only for code that it knows by its bytes, and that no table describes, or one describes wrongly.
Each entry of the tables quotes the code; all else stays to the other steppers.

Sources: glibc sysdeps/unix/sysv/linux/x86_64/{clone,clone3,__start_context}.S, sysdeps/x86_64/dl-machine.h;
musl src/thread/x86_64/clone.s, arch/x86_64/crt_arch.h; Go src/runtime/asm_amd64.s.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from sfsample.arch import AMD64, Arch
from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

_OUTERMOST = UnwindRow(Rule(CFA, 0, deref=False), None)

# From the system call on rax is 0 in the new thread only, which nobody called; the return address of the
# thread that made it is at rsp.  DW_OP_breg7 0, deref, breg0 0, lit0, ne, mul: that address, or zero.
_AROUND_CLONE = UnwindRow(
    cfa=Rule(AMD64.sp, 8, deref=False),
    ra=Rule(CFA, 0, deref=False, expression=bytes.fromhex("77 00 06 70 00 30 2e 1e")),
    kept=tuple(sorted(AMD64.callee_saved)),
)


class _Code(NamedTuple):
    """Code bytes, and the row that holds in their group `here`."""

    pattern: re.Pattern[bytes]
    row: UnwindRow


def _code(pattern: bytes, row: UnwindRow) -> _Code:
    return _Code(re.compile(pattern, re.DOTALL), row)


_ANYWHERE = (
    # glibc __start_context, to which a makecontext's function returns; its table says that a caller follows:
    # mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call setcontext; mov %rax,%rdi; call exit
    _code(
        rb"(?P<here>\x48\x89\xdc\x48\x8b\x3c\x24\x48\x85\xff\x74.\xe8....\x48\x89\xc7\xe8....)",
        _OUTERMOST,
    ),
    # glibc clone, clone3: mov $56 or $435,%eax; syscall; test %rax,%rax; jl; je; ret
    _code(rb"\xb8(?:\x38\x00|\xb3\x01)\x00\x00(?P<here>\x0f\x05\x48\x85\xc0\x7c.\x74.\xc3)", _AROUND_CLONE),
    # musl clone: syscall; test %eax,%eax; jne; xor %ebp,%ebp; pop %rdi; call *%r9
    _code(rb"(?P<here>\x0f\x05\x85\xc0\x75.)\x31\xed\x5f\x41\xff\xd1", _AROUND_CLONE),
    _code(rb"\x0f\x05\x85\xc0\x75.(?P<here>\x31\xed\x5f\x41\xff\xd1)", _OUTERMOST),
    # Go runtime.goexit, to whose second instruction a goroutine's function returns: nop; call; nop
    _code(rb"\x90(?P<here>)\xe8....\x90", _OUTERMOST),
)
_AT_ENTRY = (
    # glibc and musl _start: xor %ebp,%ebp, and up to its first call
    _code(rb"(?P<here>(?:\xf3\x0f\x1e\xfa)?\x48?\x31\xed.{0,40}?(?:\xe8|\xff\x15)....)", _OUTERMOST),
    # glibc's ld.so: mov %rsp,%rdi; call _dl_start; ...; xor %ebp,%ebp; call _dl_init; ...; jmp *%r12
    _code(
        rb"(?P<here>\x48\x89\xe7\xe8....(?:.{0,40}?\x31\xed\xe8....(?:.{0,16}?\x41\xff\xe4)?)?)", _OUTERMOST
    ),
)
_REACH = 64  # bytes before and after a pc that an entry of the table may span


class StartStepper:
    """Knows the code in which stacks begin."""

    found = Found.START

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return "outermost", or the row of code that two threads leave, of which one has just begun."""
        if module is None or arch.machine != AMD64.machine:
            return None
        places = _places(module, frame.pc)
        return next((row for begin, end, row in places if _is_in(frame, module, begin, end)), None)


def _is_in(frame: Frame, module: Module, begin: int, end: int) -> bool:
    """Whether the frame is in [begin, end).

    A return address may be the end, behind a call; it is the beginning only where a return was prepared
    without a call, or else it belongs to the function before, whose last instruction calls.
    """
    pc = frame.pc
    if frame.exact:
        return begin <= pc < end
    return begin < pc <= end or (pc == begin and not module.follows_call(pc))


def _places(module: Module, pc: int) -> Iterator[tuple[int, int, UnwindRow]]:
    """Yield where known code near `pc` begins and ends, and its row."""
    first, text = module.code_near(pc, _REACH)
    entry = module.address(module.image.entry) - first
    found = [(code, code.pattern.match(text, entry)) for code in _AT_ENTRY if 0 <= entry < len(text)]
    found += [(code, match) for code in _ANYWHERE for match in code.pattern.finditer(text)]
    for code, match in found:
        if match is not None:
            yield first + match.start("here"), first + match.end("here"), code.row
