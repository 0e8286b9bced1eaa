"""Generated code that goes straight to its `ret`: the stubs of runtimes (CPython's, with `-X perf`).

Law: answers only for code that lies in no file, and only if it knows every instruction from the pc to the
`ret`, and so where sp will be then.  Still a guess: the code is read later than the registers, and behind a
call that never returns anything may stand.  So the return address must follow a call.

Source: Intel SDM volume 2 (PUSH, POP, ADD, SUB, CALL, RET); register numbers: AMD64 psABI figure 3.36.
"""

import re

from sfsample.arch import AMD64, Arch
from sfsample.model import CFA, Found, Frame, Rule
from sfsample.modules.generated import ReadCode
from sfsample.modules.module import Module
from sfsample.unwind.row import UnwindRow

_LONGEST = 64
_STEP = re.compile(
    rb"\x48(?:\x83\xc4(?P<add8>[\x00-\x7f])|\x81\xc4(?P<add32>...[\x00-\x7f]))"  # add $imm,%rsp
    rb"|\x48(?:\x83\xec(?P<sub8>[\x00-\x7f])|\x81\xec(?P<sub32>...[\x00-\x7f]))"
    rb"|(?P<push>\x41?[\x50-\x57])|(?P<pop>\x41[\x58-\x5f]|[\x58-\x5b\x5d-\x5f])"  # but for pop %rsp
    rb"|(?P<mov>\x48\x89\xe5)"  # mov %rsp,%rbp
    rb"|(?P<neutral>\xe8....|\x41?\xff[\xd0-\xd7]|\xf3\x0f\x1e\xfa)"  # call, call *register, endbr64
    rb"|(?P<ret>\xc3)",
    re.DOTALL,
)
_DWARF: tuple[int, ...] = (
    0,
    2,
    1,
    3,
    7,
    6,
    4,
    5,
    *range(8, 16),
)  # DWARF number by the number in an instruction
_WORD = 8


class EpilogueStepper:
    """Steps from generated code.  `code` reads that of one process; without it nothing is known."""

    found = Found.EPILOGUE

    def __init__(self, code: ReadCode | None = None) -> None:
        self._code = code

    def reading(self, code: ReadCode) -> "EpilogueStepper":
        """Return the stepper of the process whose code this reads."""
        return EpilogueStepper(code)

    def row_at(self, frame: Frame, module: Module | None, arch: Arch) -> UnwindRow | None:
        """Return the row that the instructions at the pc tell."""
        if self._code is None or module is not None or arch.machine != AMD64.machine:
            return None
        return straight_row(self._code(frame.pc, _LONGEST))


def straight_row(code: bytes) -> UnwindRow | None:
    """Return the row at the first byte of code that goes straight to its `ret`."""
    path, at = _Path(), 0
    while step := _STEP.match(code, at):
        if step["ret"]:
            return path.row()
        path.take(step)
        at = step.end()
    return None


class _Path:
    """What instructions do to sp, and to the callee-saved registers.  Slots count from sp at the pc."""

    def __init__(self) -> None:
        self._sp = 0
        self._pushed: dict[int, int] = {}  # slot -> register
        self._slots: dict[int, int | None] = {}  # where the caller's value of a register is; None: lost

    def take(self, step: re.Match[bytes]) -> None:
        """Execute an instruction."""
        kind, operand = str(step.lastgroup), step[str(step.lastgroup)]
        if kind.startswith(("add", "sub")):
            size = int.from_bytes(operand, "little")
            self._sp += size if kind.startswith("add") else -size
        elif kind == "push":
            self._sp -= _WORD
            self._pushed[self._sp] = _register(operand)
        elif kind == "pop":
            self._pop(_register(operand))
            self._sp += _WORD
        elif kind == "mov":
            self._slots[AMD64.fp] = None

    def _pop(self, register: int) -> None:
        if self._sp >= 0:
            self._slots[register] = self._sp
        elif self._pushed.get(self._sp) == register:
            self._slots.pop(register, None)  # its own value again
        else:
            self._slots[register] = None

    def row(self) -> UnwindRow | None:
        """Return the row, now that sp points to the return address."""
        if self._sp < 0:
            return None
        cfa = self._sp + _WORD
        saved = ((n, slot - cfa) for n, slot in self._slots.items() if slot is not None)
        return UnwindRow(
            Rule(AMD64.sp, cfa, deref=False),
            Rule(CFA, -_WORD, deref=True),
            registers=tuple(
                (n, Rule(CFA, offset, deref=True)) for n, offset in saved if n in AMD64.callee_saved
            ),
            kept=tuple(sorted(AMD64.callee_saved - self._slots.keys())),
            guess=True,
        )


def _register(instruction: bytes) -> int:
    """Return the register that a push or pop names."""
    return _DWARF[(instruction[-1] & 7) + 8 * (len(instruction) - 1)]
