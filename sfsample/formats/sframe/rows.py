"""SFrame rows (FREs): the words of one function, and what they mean on each ABI.

Law: decoding is driven by the ABI table; no code asks which ABI it is, except for the two encodings that
belong to one ABI by specification (s390x scaled CFA offsets and V2 registers in RA/FP words).

Source: SFrame V3, sections "SFrame FRE" and "Flexible FDE"; V2 errata 1, appendix s390x.
"""

from itertools import pairwise
from struct import unpack_from
from typing import NamedTuple, Protocol

from sfsample.core.arch import AARCH64, AARCH64_BE, AMD64, S390X, Arch, ByteOrder
from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError

Buffer = bytes | memoryview

_START_CODES = ("B", "H", "I")
_WORD_CODES = ("b", "h", "i")
_WORD_SIZES = (1, 2, 4)
_MAX_WORD_BYTES = 15 * 4
_MAX_FLEX_WORDS = 6
_MAX_ROWS = 1 << 18  # of one function; V3 cannot count beyond 65,535
_MAX_KNOWN = 1 << 14  # different rows to remember; a large program has some thousands
# Bytes of a row from its info byte on, by that byte; a word size that does not exist counts as none.
_TAIL_SIZES = bytes(1 + (info >> 1 & 15) * (1, 2, 4, 0)[info >> 5 & 3] for info in range(256))


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


class RowDecoder:
    """Decodes the rows of one table, whose FRE area is `area`.

    Rows repeat: what the bytes of one mean is worked out once, and then looked up.
    """

    __slots__ = ("_area", "_header", "_order", "_read")

    def __init__(self, area: Buffer, header: Header) -> None:
        self._area = area
        self._header = header
        self._order = "<" if header.byteorder == "little" else ">"
        self._read: dict[tuple[int, int, bool], dict[bytes, SFrameFre]] = {}

    def rows(self, function: Function) -> tuple[SFrameFre, ...]:
        """Return the rows of a function.

        Raises FormatError, its offset counted in the area, when the extent or the order of the rows is
        damaged.  A row that merely makes no sense is kept, with its `problem`: the others stay usable.
        """
        offset, count, kind = function.fre_off, function.num_fres, function.fde_type
        if function.fre_type >= len(_START_CODES):
            raise FormatError("FRE area", offset, f"FRE type {function.fre_type}")
        if kind > 1:
            raise FormatError("FRE area", offset, f"FDE type {kind} is reserved")
        width = 1 << function.fre_type
        if count * (width + 1) > len(self._area) - offset:
            raise FormatError("FRE area", offset, f"{count} rows do not fit")
        if count > _MAX_ROWS:
            raise FormatError("FRE area", offset, f"{count} rows are more than any function has")
        data = bytes(self._area[offset : offset + count * (width + 1 + _MAX_WORD_BYTES)])
        known = self._read.setdefault((function.fre_type, kind, function.signal), {})
        rows: list[SFrameFre] = []
        begin = 0
        try:
            for _ in range(count):
                end = begin + width + _TAIL_SIZES[data[begin + width]]
                raw = data[begin:end]
                row = known.get(raw)
                if row is None:
                    row = self._row(raw, width, function, offset + begin, end - begin)
                    if len(known) < _MAX_KNOWN:
                        known[raw] = row
                rows.append(row)
                begin = end
        except IndexError:
            raise FormatError("FRE area", offset + begin, "row outside the FRE area") from None
        self._check_order(rows, function)
        return tuple(rows)

    def _row(self, raw: bytes, width: int, function: Function, offset: int, size: int) -> SFrameFre:
        info = raw[width]
        code, count = info >> 5 & 3, info >> 1 & 0xF
        if code >= len(_WORD_CODES):
            raise FormatError("FRE area", offset + width + 1, "data word size code 3")
        if len(raw) != size:
            raise FormatError("FRE area", offset + width + 1, "row ends outside the area")
        start = int.from_bytes(raw[:width], self._header.byteorder)
        words = unpack_from(f"{self._order}{count}{_WORD_CODES[code]}", raw, width + 1)
        row = (_flexible if function.fde_type else _default)(self._header, start, info, words)
        return row._replace(signal=True) if function.signal else row

    def _check_order(self, rows: list[SFrameFre], function: Function) -> None:
        starts = [row[0] for row in rows]
        if starts == sorted(starts):
            return
        at = next(i for i, (one, next_) in enumerate(pairwise(starts), 1) if next_ < one)
        width = 1 << function.fre_type
        before = sum(width + _TAIL_SIZES[row.info] for row in rows[:at])
        what = f"row start {starts[at]} after {starts[at - 1]}"
        raise FormatError("FRE area", function.fre_off + before, what)


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
