"""Decodes x86-64 instructions, as far as code analysis needs them to find a return address.

A decoded instruction has steps in order, and the addresses of the instructions that may run next.  A step
changes a register or a word in memory.  A step never guesses: if the new value cannot be expressed, the step
makes the register or word unknown.  No other module imports iced-x86.

Source: AMD64 psABI table 3.36 (DWARF numbers of registers), figure 3.4 (registers that a call may change).
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

SP, FP = 7, 6  # DWARF numbers
_WORD = 8  # bytes
LONGEST = 15  # bytes of the longest instruction
# index: DWARF number
_REGISTER_NAMES = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)))


class Set(NamedTuple):
    """`register` becomes `source` + `offset`."""

    register: int
    source: int | None = None  # None: `register` becomes unknown
    offset: int = 0


class Load(NamedTuple):
    """`register` becomes the word at `base` + `offset`."""

    register: int
    base: int
    offset: int


class Store(NamedTuple):
    """The word at `base` + `offset` becomes `source`."""

    source: int | None  # None: the word becomes unknown
    base: int
    offset: int


Step = Set | Load | Store
_UNKNOWN_AFTER_CALL = tuple(map(Set, (0, 1, 2, 4, 5, 8, 9, 10, 11)))
_UNKNOWN_AFTER_SYSCALL = tuple(map(Set, (0, 2, 11)))


class Instruction(NamedTuple):
    """The effects of an instruction, and the instructions that may run next."""

    end: int  # address of the next instruction in memory
    steps: tuple[Step, ...] = ()
    falls_through: bool = True  # True: the instruction at `end` may run next
    jump: int | None = None  # address of an instruction that may run next
    returns: bool = False  # True: the instruction pops the return address, or is a tail call
    jumps_away: bool = False  # True: the instruction jumps to an address that the code does not state
    calls: bool = False
    target: int | None = None  # target of a call; None: the code states no target


def decode(code: bytes, address: int) -> Instruction | None:
    """Return the first instruction of `code`, at `address`; None: invalid, or iced-x86 is missing."""
    decoder = _decoder()
    return decoder.decode(code[:LONGEST], address) if decoder and code else None


@cache
def _decoder() -> "_Decoder | None":
    try:
        import iced_x86
    except ImportError:  # machine without a wheel of iced-x86
        return None
    return _Decoder(iced_x86)


class _Decoder:
    """Translates instructions of iced-x86.  A parameter `i` is an instruction of iced-x86."""

    def __init__(self, iced: Any) -> None:  # noqa: ANN401 - a module
        self._iced = iced
        self._numbers = {getattr(iced.Register, name): n for n, name in enumerate(_REGISTER_NAMES)}
        self._info_factory = iced.InstructionInfoFactory()
        self._next, self._halt = iced.FlowControl.NEXT, iced.Mnemonic.HLT
        access = iced.OpAccess
        self._writes = (access.WRITE, access.COND_WRITE, access.READ_WRITE, access.READ_COND_WRITE)
        self._exact_steps = {getattr(iced.Code, code): steps for code, steps in self._exact_by_name().items()}

    def decode(self, code: bytes, address: int) -> Instruction | None:
        i = self._iced.Decoder(64, code, ip=address).decode()
        if i.is_invalid:
            return None
        flow, end = self._iced.FlowControl, i.next_ip
        if i.flow_control == self._next and i.mnemonic != self._halt:  # nearly all instructions
            exact = self._exact_steps.get(i.code)
            steps = tuple(exact(i)) if exact and not i.has_segment_prefix else ()
            return Instruction(end, steps or tuple(self._unknown_after(i)))
        match i.flow_control:
            case flow.RETURN:
                return Instruction(end, falls_through=False, returns=i.op_count == 0)
            case flow.UNCONDITIONAL_BRANCH:
                return Instruction(end, falls_through=False, jump=i.near_branch_target)
            case flow.CONDITIONAL_BRANCH:
                return Instruction(end, jump=i.near_branch_target)
            case flow.INDIRECT_BRANCH:
                # a jump through a slot at a fixed address is a tail call of a function that returns
                returns = i.is_ip_rel_memory_operand
                return Instruction(end, falls_through=False, jumps_away=True, returns=returns)
            case flow.CALL if i.mnemonic == self._iced.Mnemonic.SYSCALL:
                return Instruction(end, _UNKNOWN_AFTER_SYSCALL)
            case flow.CALL | flow.INDIRECT_CALL:
                return Instruction(end, _UNKNOWN_AFTER_CALL, calls=True, target=i.near_branch_target or None)
        return Instruction(end, falls_through=False)

    def _exact_by_name(self) -> dict[str, Callable[[Any], Iterator[Step]]]:
        """Return the functions that yield exact steps, by the names of iced-x86's instruction codes."""
        return {
            **dict.fromkeys(("PUSH_R64", "PUSH_RM64", "PUSHQ_IMM8", "PUSHQ_IMM32", "PUSHFQ"), self._push),
            **dict.fromkeys(("POP_R64", "POP_RM64", "POPFQ"), self._pop),
            **dict.fromkeys(("ADD_RM64_IMM8", "ADD_RM64_IMM32", "ADD_RAX_IMM32"), self._add),
            **dict.fromkeys(("SUB_RM64_IMM8", "SUB_RM64_IMM32", "SUB_RAX_IMM32"), self._add),
            **dict.fromkeys(("MOV_RM64_R64", "MOV_R64_RM64"), self._move),
            "LEA_R64_M": self._load_address,
            "LEAVEQ": lambda _: iter((Set(SP, FP), Load(FP, SP, 0), Set(SP, SP, _WORD))),
        }

    def _push(self, i: Any) -> Iterator[Step]:  # noqa: ANN401 - iced-x86 is untyped, here and below
        yield Store(self._register(i, 0), SP, -_WORD)
        yield Set(SP, SP, -_WORD)

    def _pop(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        register = self._register(i, 0)
        if register is not None:
            yield Load(register, SP, 0)
        if register != SP:
            yield Set(SP, SP, _WORD)

    def _add(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        register, number = self._register(i, 0), _signed(i.immediate(1))
        if register is not None:
            yield Set(register, register, -number if i.mnemonic == self._iced.Mnemonic.SUB else number)

    def _move(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        target, source, word = self._register(i, 0), self._register(i, 1), self._memory_operand(i)
        if target is not None and source is not None:
            yield Set(target, source)
        elif target is not None and word is not None:
            yield Load(target, *word)
        elif source is not None and word is not None:
            yield Store(source, *word)

    def _load_address(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        target, word = self._register(i, 0), self._memory_operand(i)
        if target is not None and word is not None:
            yield Set(target, *word)

    def _unknown_after(self, i: Any) -> Iterator[Step]:  # noqa: ANN401
        """Yield steps that make unknown every register and word that `i` writes."""
        info, writes = self._info_factory.info(i), self._writes
        for used in info.used_registers():
            number = self._numbers.get(self._iced.RegisterExt.full_register(used.register))
            if number is not None and used.access in writes:
                yield Set(number)
        word = self._memory_operand(i) if info.op0_access in writes and not self._is_register(i, 0) else None
        if word is not None:
            size = self._iced.MemorySizeExt.size(i.memory_size)
            yield from (Store(None, word[0], word[1] + at) for at in range(0, size, _WORD))

    def _register(self, i: Any, operand: int) -> int | None:  # noqa: ANN401
        return self._numbers.get(i.op_register(operand)) if self._is_register(i, operand) else None

    def _is_register(self, i: Any, operand: int) -> bool:  # noqa: ANN401
        return bool(operand < i.op_count and i.op_kind(operand) == self._iced.OpKind.REGISTER)

    def _memory_operand(self, i: Any) -> tuple[int, int] | None:  # noqa: ANN401
        """Return base and offset of the memory operand; None: none, or it has an index or segment."""
        base = self._numbers.get(i.memory_base)
        if base is None or i.memory_index != self._iced.Register.NONE or i.has_segment_prefix:
            return None
        return base, _signed(i.memory_displacement)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
