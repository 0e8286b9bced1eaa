"""Decodes SFrame rows (FREs) of one function into rules for CFA, return address and frame pointer.

The table `ABIS` drives the decoding, also where an encoding belongs to one ABI only (on s390x scaled CFA
offsets, and in V2 registers in RA and FP words).

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
_MAX_CACHED_ROWS = 1 << 14  # different rows; a large program has some thousands
# Bytes of a row from its info byte on, by info byte; a word size that does not exist counts as 0 bytes.
_TAIL_SIZES = bytes(1 + (info >> 1 & 15) * (1, 2, 4, 0)[info >> 5 & 3] for info in range(256))


class SFrameAbi(NamedTuple):
    """How an ABI interprets the words of a row."""

    name: str
    arch: Arch
    tracks_ra: bool  # False: the RA is always at CFA + fixed_ra
    max_words: int  # of a DEFAULT row
    cfa_scale: int = 1  # CFA offset = word * cfa_scale + cfa_adjust
    cfa_adjust: int = 0
    registers_in_words: bool = False  # before V3, an odd RA or FP word is a register


AMD64_ABI = SFrameAbi("AMD64_LE", AMD64, tracks_ra=False, max_words=2)
ABIS = {
    1: SFrameAbi("AARCH64_BE", AARCH64_BE, tracks_ra=True, max_words=3),
    2: SFrameAbi("AARCH64_LE", AARCH64, tracks_ra=True, max_words=3),
    3: AMD64_ABI,
    4: SFrameAbi("S390X_BE", S390X, True, 3, cfa_scale=8, cfa_adjust=160, registers_in_words=True),
}


class SFrameFre(NamedTuple):
    """One row: how to recover the caller from `start` up to the start of the next row."""

    start: int  # bytes from the start of the function, or of the repeated block
    info: int  # sfre_info
    words: tuple[int, ...]  # signed, as stored
    cfa: Rule | None = None  # None: outermost, unless `problem` says why the row cannot be used
    ra: Rule | None = None  # None: where the ABI has it by default
    fp: Rule | None = None  # None: unchanged
    problem: str | None = None
    signal: bool = False  # its function is a signal trampoline: the caller was interrupted

    @property
    def mangled_ra(self) -> bool:
        """AArch64: the return address is signed here."""
        return bool(self.info & 0x80)


class Header(Protocol):
    """What the decoder needs of the table."""

    version: int
    abi: SFrameAbi
    byteorder: ByteOrder

    @property
    def allows_empty_rows(self) -> bool:
        """Whether a row without words means "outermost"; otherwise it is damage."""
        ...


class Function(Protocol):
    """What the decoder needs of a function; `fre_off` is a byte offset from the start of the FRE area."""

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
    """Decodes the rows of one table; `area` is its FRE area.

    The same row bytes recur in many functions, so a cache maps the bytes of a row to the decoded row.
    """

    __slots__ = ("_area", "_cache", "_header", "_order")

    def __init__(self, area: Buffer, header: Header) -> None:
        self._area = area
        self._header = header
        self._order = "<" if header.byteorder == "little" else ">"
        self._cache: dict[tuple[int, int, bool], dict[bytes, SFrameFre]] = {}

    def rows(self, function: Function) -> tuple[SFrameFre, ...]:
        """Return the rows of a function.

        Raises FormatError, with an offset in the FRE area, when the extent or the order of the rows is
        damaged. A row that cannot be interpreted is returned with its `problem`, so that the others stay
        usable.
        """
        self._check_extent(function)
        offset, count, width = function.fre_off, function.num_fres, 1 << function.fre_type
        data = bytes(self._area[offset : offset + count * (width + 1 + _MAX_WORD_BYTES)])
        cache = self._cache.setdefault((function.fre_type, function.fde_type, function.signal), {})
        rows: list[SFrameFre] = []
        begin = 0
        try:
            for _ in range(count):
                end = begin + width + _TAIL_SIZES[data[begin + width]]
                raw = data[begin:end]
                row = cache.get(raw)
                if row is None:
                    row = self._row(raw, width, function, offset + begin, end - begin)
                    if len(cache) < _MAX_CACHED_ROWS:
                        cache[raw] = row
                rows.append(row)
                begin = end
        except IndexError:
            raise FormatError("FRE area", offset + begin, "row outside the FRE area") from None
        self._check_order(rows, function)
        return tuple(rows)

    def _check_extent(self, function: Function) -> None:
        offset, count, kind = function.fre_off, function.num_fres, function.fde_type
        if function.fre_type >= len(_START_CODES):
            raise FormatError("FRE area", offset, f"FRE type {function.fre_type}")
        if kind > 1:
            raise FormatError("FRE area", offset, f"FDE type {kind} is reserved")
        if count * ((1 << function.fre_type) + 1) > len(self._area) - offset:
            raise FormatError("FRE area", offset, f"{count} rows do not fit")
        if count > _MAX_ROWS:
            raise FormatError("FRE area", offset, f"{count} rows are more than any function has")

    def _row(self, raw: bytes, width: int, function: Function, offset: int, size: int) -> SFrameFre:
        info = raw[width]
        code, count = info >> 5 & 3, info >> 1 & 0xF
        if code >= len(_WORD_CODES):
            raise FormatError("FRE area", offset + width + 1, "data word size code 3")
        if len(raw) != size:
            raise FormatError("FRE area", offset + width + 1, "row ends outside the area")
        start = int.from_bytes(raw[:width], self._header.byteorder)
        words = unpack_from(f"{self._order}{count}{_WORD_CODES[code]}", raw, width + 1)
        row = (_flexible_row if function.fde_type else _default_row)(self._header, start, info, words)
        return row._replace(signal=True) if function.signal else row

    def _check_order(self, rows: list[SFrameFre], function: Function) -> None:
        starts = [row[0] for row in rows]
        if starts == sorted(starts):
            return
        at = next(i for i, (start, following) in enumerate(pairwise(starts), 1) if following < start)
        width = 1 << function.fre_type
        before = sum(width + _TAIL_SIZES[row.info] for row in rows[:at])
        what = f"row start {starts[at]} after {starts[at - 1]}"
        raise FormatError("FRE area", function.fre_off + before, what)


def _unusable(start: int, info: int, words: tuple[int, ...], problem: str) -> SFrameFre:
    return SFrameFre(start, info, words, problem=problem)


def _empty_row(header: Header, start: int, info: int) -> SFrameFre:
    if header.allows_empty_rows:
        return SFrameFre(start, info, ())
    return _unusable(start, info, (), "a row without words, in a version that has none")


def _default_row(header: Header, start: int, info: int, words: tuple[int, ...]) -> SFrameFre:
    """Decode words that are offsets: CFA from SP or FP; RA (where the ABI tracks it) and FP from the CFA."""
    abi = header.abi
    if not words:
        return _empty_row(header, start, info)
    if len(words) > abi.max_words:
        return _unusable(start, info, words, f"{len(words)} words, at most {abi.max_words} for {abi.name}")
    base = abi.arch.sp if info & 1 else abi.arch.fp
    cfa = Rule(base, words[0] * abi.cfa_scale + abi.cfa_adjust, deref=False)
    ra_and_fp = words[1:] if abi.tracks_ra else (0, *words[1:])
    try:
        ra = _saved_rule(header, ra_and_fp[0]) if abi.tracks_ra and ra_and_fp else None
        fp = _saved_rule(header, ra_and_fp[1]) if len(ra_and_fp) > 1 else None
    except ValueError as problem:
        return _unusable(start, info, words, str(problem))
    return SFrameFre(start, info, words, cfa, ra, fp)


def _saved_rule(header: Header, word: int) -> Rule | None:
    """Return the rule of an RA or FP word: a stack slot at CFA + word or, on s390x, a register."""
    if header.abi.registers_in_words:
        if word == 0:
            return None  # not saved, still in its register; an RA word 0 is a placeholder before FP
        if word & 1:
            if header.version > 2 or not 0 <= word >> 1 <= 31:
                raise ValueError(f"register-encoded word {word:#x}")
            return Rule(word >> 1, 0, deref=False)
    return Rule(CFA, word, deref=True)


def _flexible_row(header: Header, start: int, info: int, words: tuple[int, ...]) -> SFrameFre:
    """Decode words that are (control, offset) pairs for CFA, RA, FP; one word 0 stands for an absent rule."""
    if not words:
        return _empty_row(header, start, info)
    if len(words) > _MAX_FLEX_WORDS:
        return _unusable(start, info, words, f"{len(words)} words in a flexible row")
    unsigned = (1 << 8 * _WORD_SIZES[info >> 5 & 3]) - 1
    try:
        rules = _flex_rules(words, unsigned)
    except ValueError as problem:
        return _unusable(start, info, words, str(problem))
    cfa, ra, fp = rules
    if cfa is None or cfa.base == CFA:
        return _unusable(start, info, words, "a CFA that is not based on a register")
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
