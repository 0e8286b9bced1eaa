"""SFrame rows (FREs): the words of one function, and what they mean on each ABI.

Law: decoding is driven by the ABI table; no code asks which ABI it is, except for the two encodings that
belong to one ABI by specification (s390x scaled CFA offsets and V2 registers in RA/FP words).

Source: SFrame V3, sections "SFrame FRE" and "Flexible FDE"; V2 errata 1, appendix s390x.
"""

from struct import Struct
from typing import NamedTuple, Protocol

from sfsample.arch import AARCH64, AARCH64_BE, AMD64, S390X, Arch, ByteOrder
from sfsample.errors import FormatError
from sfsample.model import CFA, Rule

Buffer = bytes | memoryview

_START_CODES = ("B", "H", "I")
_WORD_CODES = ("b", "h", "i")
_WORD_SIZES = (1, 2, 4)
_MAX_FLEX_WORDS = 6


class SFrameAbi(NamedTuple):
    """What an ABI makes of a row's words."""

    name: str
    arch: Arch
    tracks_ra: bool  # False: the RA is always at CFA + fixed_ra
    max_words: int  # of a DEFAULT row
    cfa_scale: int = 1
    cfa_adjust: int = 0
    registers_in_words: bool = False  # V2: an odd RA or FP word is a register


AMD64_ABI = SFrameAbi("AMD64_LE", AMD64, tracks_ra=False, max_words=2)
ABIS = {
    1: SFrameAbi("AARCH64_BE", AARCH64_BE, tracks_ra=True, max_words=3),
    2: SFrameAbi("AARCH64_LE", AARCH64, tracks_ra=True, max_words=3),
    3: AMD64_ABI,
    4: SFrameAbi("S390X_BE", S390X, True, 3, cfa_scale=8, cfa_adjust=160, registers_in_words=True),
}


class SFrameFre(NamedTuple):
    """One row.  `start` counts from the function (or repeated block).

    `cfa` None: outermost, unless `problem` says why the row cannot be used.
    `ra` None: where the ABI has it by default; `fp` None: unchanged.  `signal`: its function is a signal
    trampoline, whose caller was interrupted.
    """

    start: int
    info: int
    words: tuple[int, ...]  # signed, as stored
    cfa: Rule | None = None
    ra: Rule | None = None
    fp: Rule | None = None
    problem: str | None = None
    signal: bool = False

    @property
    def mangled_ra(self) -> bool:
        """AArch64: the RA is signed at this point."""
        return bool(self.info & 0x80)


class Header(Protocol):
    """What rows need to know of their table."""

    version: int
    abi: SFrameAbi
    byteorder: ByteOrder

    @property
    def allows_empty_rows(self) -> bool:
        """Whether a row without words means "outermost"."""
        ...


class Function(Protocol):
    """What rows need to know of their function; `fre_off` counts from the start of the FRE area."""

    @property
    def fre_off(self) -> int: ...  # noqa: D102
    @property
    def num_fres(self) -> int: ...  # noqa: D102
    @property
    def fre_type(self) -> int: ...  # noqa: D102
    @property
    def fde_type(self) -> int: ...  # noqa: D102
    @property
    def signal(self) -> bool: ...  # noqa: D102


def decode_rows(area: Buffer, function: Function, header: Header) -> tuple[SFrameFre, ...]:
    """Decode the rows of a function from the FRE area.

    Raises FormatError, its offset counted in the area, when the extent or the order of the rows is damaged.
    A row that merely makes no sense is kept, with its `problem`, so that the others stay usable.
    """
    offset, count = function.fre_off, function.num_fres
    if function.fre_type >= len(_START_CODES):
        raise FormatError("FRE area", offset, f"FRE type {function.fre_type}")
    if function.fde_type > 1:
        raise FormatError("FRE area", offset, f"FDE type {function.fde_type} is reserved")
    order = "<" if header.byteorder == "little" else ">"
    head = Struct(order + _START_CODES[function.fre_type] + "B")
    if count * head.size > len(area) - offset:
        raise FormatError("FRE area", offset, f"{count} rows do not fit")
    interpret = _flexible if function.fde_type else _default
    rows: list[SFrameFre] = []
    previous = -1
    for _ in range(count):
        start, info = head.unpack_from(area, offset)
        words = _words(area, offset + head.size, info, order)
        if start < previous:
            raise FormatError("FRE area", offset, f"row start {start} after {previous}")
        row = interpret(header, start, info, words)
        rows.append(row._replace(signal=True) if function.signal else row)
        previous = start
        offset += head.size + len(words) * _WORD_SIZES[info >> 5 & 3]
    return tuple(rows)


def _words(area: Buffer, offset: int, info: int, order: str) -> tuple[int, ...]:
    width, count = info >> 5 & 3, info >> 1 & 0xF
    if width >= len(_WORD_CODES):
        raise FormatError("FRE area", offset, "data word size code 3")
    if offset + count * _WORD_SIZES[width] > len(area):
        raise FormatError("FRE area", offset, "row ends outside the area")
    return Struct(f"{order}{count}{_WORD_CODES[width]}").unpack_from(area, offset)


def _broken(start: int, info: int, words: tuple[int, ...], why: str) -> SFrameFre:
    return SFrameFre(start, info, words, problem=why)


def _empty(header: Header, start: int, info: int) -> SFrameFre:
    if header.allows_empty_rows:
        return SFrameFre(start, info, ())
    return _broken(start, info, (), "a row without words, in a version that has none")


def _default(header: Header, start: int, info: int, words: tuple[int, ...]) -> SFrameFre:
    """Words are CFA, [RA where the ABI tracks it,] FP: offsets from SP or FP, then from the CFA."""
    abi = header.abi
    if not words:
        return _empty(header, start, info)
    if len(words) > abi.max_words:
        return _broken(start, info, words, f"{len(words)} words, at most {abi.max_words} for {abi.name}")
    base = abi.arch.sp if info & 1 else abi.arch.fp
    cfa = Rule(base, words[0] * abi.cfa_scale + abi.cfa_adjust, deref=False)
    saved = words[1:] if abi.tracks_ra else (0, *words[1:])
    try:
        ra = _slot(header, saved[0]) if abi.tracks_ra and saved else None
        fp = _slot(header, saved[1]) if len(saved) > 1 else None
    except ValueError as why:
        return _broken(start, info, words, str(why))
    return SFrameFre(start, info, words, cfa, ra, fp)


def _slot(header: Header, word: int) -> Rule | None:
    """Return where an RA or FP word points: a slot from the CFA or, on s390x, a register."""
    if header.abi.registers_in_words:
        if word == 0:
            return None  # not saved: still in its register; an RA word 0 only lets FP follow
        if word & 1:
            if header.version > 2 or not 0 <= word >> 1 <= 31:
                raise ValueError(f"register-encoded word {word:#x}")
            return Rule(word >> 1, 0, deref=False)
    return Rule(CFA, word, deref=True)


def _flexible(header: Header, start: int, info: int, words: tuple[int, ...]) -> SFrameFre:
    """Words are (control, offset) pairs for CFA, RA, FP; an absent rule before another is one word 0."""
    if not words:
        return _empty(header, start, info)
    if len(words) > _MAX_FLEX_WORDS:
        return _broken(start, info, words, f"{len(words)} words in a flexible row")
    unsigned = (1 << 8 * _WORD_SIZES[info >> 5 & 3]) - 1
    try:
        rules = _flex_rules(words, unsigned)
    except ValueError as why:
        return _broken(start, info, words, str(why))
    cfa, ra, fp = rules
    if cfa is None or cfa.base == CFA:
        return _broken(start, info, words, "a CFA that is not based on a register")
    abi = header.abi
    scaled = cfa._replace(offset=cfa.offset * abi.cfa_scale + abi.cfa_adjust)
    return SFrameFre(start, info, words, scaled, ra, fp)


def _flex_rules(words: tuple[int, ...], unsigned: int) -> list[Rule | None]:
    rules: list[Rule | None] = []
    position = 0
    while position < len(words) and len(rules) < 3:
        control = words[position] & unsigned
        if control == 0:
            rules.append(None)
            position += 1
            continue
        if position + 1 == len(words):
            raise ValueError("a control word without its offset")
        rules.append(_flex_rule(control, words[position + 1]))
        position += 2
    if position != len(words):
        raise ValueError("words left over after the FP rule")
    return rules + [None] * (3 - len(rules))


def _flex_rule(control: int, offset: int) -> Rule:
    """Control bits: 0 register base, 1 dereference, 2 zero, 3.. DWARF register number."""
    register = control >> 3
    if control & 4 or register > 127:
        # gas 2.46 emits register 0x1fffffff for an rbp saved relative to another register
        raise ValueError(f"control word {control:#x}")
    base = register if control & 1 else CFA
    return Rule(base, offset, deref=bool(control & 2))
