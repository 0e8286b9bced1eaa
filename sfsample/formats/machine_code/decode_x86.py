"""x86-64 instructions, as far as they matter to whoever looks for a return address.

Law: bytes in, values out; the one door of iced-x86.  An instruction is what it does to registers and to words
in memory, in order, and what may come next.  Nothing is told that is not certain: a register that is written
is lost unless a step says what it becomes.

Register numbers are DWARF's (AMD64 psABI table 3.36); what a call loses: its figure 3.4.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

SP, FP = 7, 6
_WORD = 8
LONGEST = 15  # bytes of an instruction
_BY_NUMBER = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)))


class Set(NamedTuple):
    """`register` becomes `source` + `offset`; without a source: anything."""

    register: int
    source: int | None = None
    offset: int = 0


class Load(NamedTuple):
    """`register` becomes the word at `base` + `offset`."""

    register: int
    base: int
    offset: int


class Store(NamedTuple):
    """The word at `base` + `offset` becomes `source`; None: anything."""

    source: int | None
    base: int
    offset: int


Step = Set | Load | Store
_LOST_BY_CALL = tuple(map(Set, (0, 1, 2, 4, 5, 8, 9, 10, 11)))
_LOST_BY_SYSCALL = tuple(map(Set, (0, 2, 11)))


class Instruction(NamedTuple):
    """`falls`: the one behind it (at `end`) may be next; so may the one at `jump`.

    `leaves`: it jumps where the code does not say.  `returns`: it, or the function that it jumps to, pops the
    return address.  `target`: of a call, if the code says.
    """

    end: int
    steps: tuple[Step, ...] = ()
    falls: bool = True
    jump: int | None = None
    returns: bool = False
    leaves: bool = False
    calls: bool = False
    target: int | None = None


def instruction(code: bytes, address: int) -> Instruction | None:
    """Return the instruction at `address` that `code` begins with; None: there is none, or nobody to ask."""
    reader = _reader()
    return reader.read(code[:LONGEST], address) if reader and code else None


@cache
def _reader() -> "_Reader | None":
    try:
        import iced_x86
    except ImportError:  # there is no wheel for this machine
        return None
    return _Reader(iced_x86)


class _Reader:
    """Translates what iced-x86 says."""

    def __init__(self, iced: Any) -> None:  # noqa: ANN401 - a module
        self._iced = iced
        self._numbers = {getattr(iced.Register, name): n for n, name in enumerate(_BY_NUMBER)}
        self._facts = iced.InstructionInfoFactory()
        self._exact = {getattr(iced.Code, code): steps for code, steps in self._known().items()}

    def read(self, code: bytes, address: int) -> Instruction | None:
        found = self._iced.Decoder(64, code, ip=address).decode()
        return None if found.is_invalid else self._translated(found)

    def _translated(self, i: Any) -> Instruction:  # noqa: ANN401 - an instruction of theirs, here and below
        flow, end = self._iced.FlowControl, i.next_ip
        match i.flow_control:
            case flow.RETURN:
                return Instruction(end, falls=False, returns=i.op_count == 0)
            case flow.UNCONDITIONAL_BRANCH:
                return Instruction(end, falls=False, jump=i.near_branch_target)
            case flow.CONDITIONAL_BRANCH:
                return Instruction(end, jump=i.near_branch_target)
            case flow.INDIRECT_BRANCH:
                # through a fixed place: to another module's function, which returns to our caller
                return Instruction(end, falls=False, leaves=True, returns=i.is_ip_rel_memory_operand)
            case flow.CALL if i.mnemonic == self._iced.Mnemonic.SYSCALL:
                return Instruction(end, _LOST_BY_SYSCALL)
            case flow.CALL | flow.INDIRECT_CALL:
                return Instruction(end, _LOST_BY_CALL, calls=True, target=i.near_branch_target or None)
            case flow.NEXT if i.mnemonic != self._iced.Mnemonic.HLT:
                return Instruction(end, tuple(self._steps(i)))
        return Instruction(end, falls=False)

    def _steps(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        exact = self._exact.get(i.code)
        steps = tuple(exact(i)) if exact and not i.has_segment_prefix else ()
        yield from steps or self._lost(i)

    def _known(self) -> dict[str, Callable[[Any], Iterator[Step]]]:
        add, subtract = self._adds(1), self._adds(-1)
        return {
            **dict.fromkeys(("PUSH_R64", "PUSH_RM64", "PUSHQ_IMM8", "PUSHQ_IMM32", "PUSHFQ"), self._push),
            **dict.fromkeys(("POP_R64", "POP_RM64", "POPFQ"), self._pop),
            **dict.fromkeys(("ADD_RM64_IMM8", "ADD_RM64_IMM32", "ADD_RAX_IMM32"), add),
            **dict.fromkeys(("SUB_RM64_IMM8", "SUB_RM64_IMM32", "SUB_RAX_IMM32"), subtract),
            **dict.fromkeys(("MOV_RM64_R64", "MOV_R64_RM64"), self._move),
            "LEA_R64_M": self._address,
            "LEAVEQ": self._leave,
        }

    def _push(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        yield Store(self._register(i, 0), SP, -_WORD)
        yield Set(SP, SP, -_WORD)

    def _pop(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        register = self._register(i, 0)
        if register is not None:
            yield Load(register, SP, 0)
        if register != SP:
            yield Set(SP, SP, _WORD)

    def _leave(self, _: Any) -> Iterator[Step]:  # noqa: ANN401
        yield from (Set(SP, FP), Load(FP, SP, 0), Set(SP, SP, _WORD))

    def _adds(self, sign: int) -> Callable[[Any], Iterator[Step]]:
        def steps(i: Any) -> Iterator[Step]:  # noqa: ANN401
            register = self._register(i, 0)
            if register is not None:
                yield Set(register, register, sign * _signed(i.immediate(1)))

        return steps

    def _move(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        to, source, place = self._register(i, 0), self._register(i, 1), self._place(i)
        if to is not None and source is not None:
            yield Set(to, source)
        elif to is not None and place is not None:
            yield Load(to, *place)
        elif source is not None and place is not None:
            yield Store(source, *place)

    def _address(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        to, place = self._register(i, 0), self._place(i)
        if to is not None and place is not None:
            yield Set(to, *place)

    def _lost(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        """Yield that what is written is lost."""
        access, facts = self._iced.OpAccess, self._facts.info(i)
        writes = (access.WRITE, access.COND_WRITE, access.READ_WRITE, access.READ_COND_WRITE)
        for used in facts.used_registers():
            number = self._numbers.get(self._iced.RegisterExt.full_register(used.register))
            if number is not None and used.access in writes:
                yield Set(number)
        place = self._place(i) if facts.op0_access in writes and not self._is_register(i, 0) else None
        if place is not None:
            size = self._iced.MemorySizeExt.size(i.memory_size)
            yield from (Store(None, place[0], place[1] + at) for at in range(0, size, _WORD))

    def _register(self, i: Any, operand: int) -> int | None:  # noqa: ANN401
        return self._numbers.get(i.op_register(operand)) if self._is_register(i, operand) else None

    def _is_register(self, i: Any, operand: int) -> bool:  # noqa: ANN401
        return bool(operand < i.op_count and i.op_kind(operand) == self._iced.OpKind.REGISTER)

    def _place(self, i: Any) -> tuple[int, int] | None:  # noqa: ANN401
        """Return base and offset of the operand in memory, if that is all there is to its address."""
        base = self._numbers.get(i.memory_base)
        if base is None or i.memory_index != self._iced.Register.NONE or i.has_segment_prefix:
            return None
        return base, _signed(i.memory_displacement)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
