"""Decodes the SFrame rows (FREs) of a function into rules for CFA, return address and frame pointer.

The table `ABIS` has the differences between ABIs.  Some encodings belong to one ABI: s390x scales CFA
offsets.  In V2 of s390x, a word for RA (return address) or FP (frame pointer) may name a register.

Some versions of ld write wrong rows for procedure linkage tables (PLT).  `SFrameTable.rows` returns the rows
as the file has them.  `row_at` repairs or leaves out wrong rows, and `check` reports repairs.

Source: SFrame V3, sections "SFrame FRE" and "Flexible FDE"; V2 errata 1, appendix s390x.  Repairs: the
instructions of the stubs, as ld 2.40 to 2.47 assembles them (bfd/elfxx-x86.c).
"""

from collections.abc import Sequence
from itertools import pairwise
from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from sfsample.core.arch import AARCH64, AARCH64_BE, AMD64, S390X, Arch
from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError

if TYPE_CHECKING:
    from sfsample.formats.sframe.table import SFrameFde, SFrameTable

Buffer = bytes | memoryview

_MAX_FRE_TYPE = 2  # largest fre_type; a start offset has 1 << fre_type bytes
_WORD_CODES = ("b", "h", "i")  # struct codes of words of 1, 2 and 4 bytes
_MAX_WORD_BYTES = 15 * 4
_MAX_FLEX_WORDS = 6
_MAX_ROWS = 1 << 18  # rows of one function; V3 cannot count beyond 65,535
_MAX_CACHED_ROWS = 1 << 14  # different rows; a large program has some thousands
# index: info byte of a row; value: bytes from there to the row's end (size code 3, invalid: no words)
_TAIL_SIZES = bytes(1 + (info >> 1 & 15) * (1, 2, 4, 0)[info >> 5 & 3] for info in range(256))
_SP_8, _SP_16, _SP_24 = (Rule(AMD64.sp, offset, deref=False) for offset in (8, 16, 24))
# rows of the stubs of a PLT: (start offset, CFA)
_PLT_SHAPES = (
    ((0, _SP_16), (6, _SP_24)),  # PLT0: push GOT+8; jmp *GOT+16.  Stubs push an index, then jump to PLT0
    ((0, _SP_8), (11, _SP_16)),  # jmp *GOT (6 bytes); push index (5 bytes); jmp PLT0
)

_Rules = tuple[Rule | None, Rule | None, Rule | None]  # rules for CFA, RA, FP


class SFrameAbi(NamedTuple):
    """The meaning of the words of a row on one ABI."""

    name: str
    arch: Arch
    tracks_ra: bool  # True: a DEFAULT row may have an RA rule; False: its RA is the word at CFA + fixed_ra
    max_words: int  # words of a DEFAULT row
    cfa_scale: int = 1  # CFA offset = word * cfa_scale + cfa_adjust
    cfa_adjust: int = 0
    registers_in_words: bool = False  # True: before V3, an odd RA or FP word names a register


ABIS = {
    1: SFrameAbi("AARCH64_BE", AARCH64_BE, tracks_ra=True, max_words=3),
    2: SFrameAbi("AARCH64_LE", AARCH64, tracks_ra=True, max_words=3),
    3: SFrameAbi("AMD64_LE", AMD64, tracks_ra=False, max_words=2),
    4: SFrameAbi("S390X_BE", S390X, True, 3, cfa_scale=8, cfa_adjust=160, registers_in_words=True),
}


class SFrameFre(NamedTuple):
    """One row (FRE): the rules for the caller, valid from `start` up to the start of the next row."""

    start: int  # bytes from the start of the function, or of the repeated block
    info: int  # sfre_info
    words: tuple[int, ...]  # signed words, as stored
    cfa: Rule | None = None  # None: this frame is outermost, or the row has a `problem`
    ra: Rule | None = None  # None: the RA is in the ABI's usual place
    fp: Rule | None = None  # None: FP is unchanged
    problem: str | None = None  # reason why the row cannot be used
    signal: bool = False  # True: the function is a signal trampoline, and the caller was interrupted

    @property
    def mangled_ra(self) -> bool:
        """AArch64: True if the return address is signed here."""
        return bool(self.info & 0x80)


class RowDecoder:
    """Decodes the rows of `table` from its FRE `area`; caches rows, as many functions have equal rows."""

    def __init__(self, area: Buffer, table: "SFrameTable") -> None:
        self._area, self._table = area, table
        self._cache: dict[tuple[int, int, bool], dict[bytes, SFrameFre]] = {}

    def rows(self, function: "SFrameFde") -> tuple[SFrameFre, ...]:
        """Return the rows of a function.

        Raises FormatError, with an offset in the FRE area, if rows lie outside the area or are out of order.
        A row that cannot be interpreted has a `problem`; the other rows stay usable.
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
        starts = [row[0] for row in rows]
        if starts != sorted(starts):
            at = next(i for i, (start, following) in enumerate(pairwise(starts), 1) if following < start)
            before = sum(width + _TAIL_SIZES[row.info] for row in rows[:at])
            raise FormatError("FRE area", offset + before, f"row start {starts[at]} after {starts[at - 1]}")
        return tuple(rows)

    def _check_extent(self, function: "SFrameFde") -> None:
        offset, count, kind = function.fre_off, function.num_fres, function.fde_type
        if function.fre_type > _MAX_FRE_TYPE:
            raise FormatError("FRE area", offset, f"FRE type {function.fre_type}")
        if kind > 1:
            raise FormatError("FRE area", offset, f"FDE type {kind} is reserved")
        if count * ((1 << function.fre_type) + 1) > len(self._area) - offset:
            raise FormatError("FRE area", offset, f"{count} rows do not fit")
        if count > _MAX_ROWS:
            raise FormatError("FRE area", offset, f"{count} rows are more than any function has")

    def _row(self, raw: bytes, width: int, function: "SFrameFde", offset: int, size: int) -> SFrameFre:
        info = raw[width]
        code, count = info >> 5 & 3, info >> 1 & 0xF
        if code >= len(_WORD_CODES):
            raise FormatError("FRE area", offset + width + 1, "data word size code 3")
        if len(raw) != size:
            raise FormatError("FRE area", offset + width + 1, "row ends outside the area")
        start = int.from_bytes(raw[:width], self._table.byteorder)
        words = unpack_from(f"{self._table.order}{count}{_WORD_CODES[code]}", raw, width + 1)
        try:
            rules = self._rules(info, words, function)
        except ValueError as problem:
            return SFrameFre(start, info, words, problem=str(problem), signal=function.signal)
        return SFrameFre(start, info, words, *rules, signal=function.signal)

    def _rules(self, info: int, words: tuple[int, ...], function: "SFrameFde") -> _Rules:
        if words:
            return (_flexible_rules if function.fde_type else _default_rules)(self._table, info, words)
        if self._table.allows_empty_rows:
            return None, None, None
        raise ValueError("a row without words, which this version does not allow")


def _default_rules(table: "SFrameTable", info: int, words: tuple[int, ...]) -> _Rules:
    """Decode offsets: from SP or FP to the CFA; from the CFA to RA (if the ABI tracks RA) and to FP."""
    abi = table.abi
    if len(words) > abi.max_words:
        raise ValueError(f"{len(words)} words, at most {abi.max_words} for {abi.name}")
    base = abi.arch.sp if info & 1 else abi.arch.fp
    cfa = Rule(base, words[0] * abi.cfa_scale + abi.cfa_adjust, deref=False)
    saved = [_saved_rule(table, word) for word in words[1:]]
    if not abi.tracks_ra:
        saved.insert(0, None)
    ra, fp = [*saved, None, None][:2]
    return cfa, ra, fp


def _saved_rule(table: "SFrameTable", word: int) -> Rule | None:
    """Return the rule of an RA or FP word: a stack slot at CFA + word or, on s390x, a register."""
    if not table.abi.registers_in_words or (word and not word & 1):
        return Rule(CFA, word, deref=True)
    if word == 0:
        return None  # register that is not saved; an RA word is 0 if only the FP is saved
    if table.version > 2 or not 0 <= word >> 1 <= 31:
        raise ValueError(f"register-encoded word {word:#x}")
    return Rule(word >> 1, 0, deref=False)


def _flexible_rules(table: "SFrameTable", info: int, words: tuple[int, ...]) -> _Rules:
    """Decode words: (control, offset) pairs for CFA, RA and FP; a single word 0 stands for an absent rule."""
    if len(words) > _MAX_FLEX_WORDS:
        raise ValueError(f"{len(words)} words in a flexible row")
    unsigned = (1 << (8 << (info >> 5 & 3))) - 1  # mask of a word of 1, 2 or 4 bytes
    rules: list[Rule | None] = []
    remaining = iter(words)
    for word in remaining:
        if len(rules) == 3:
            raise ValueError("words left over after the FP rule")
        control, offset = word & unsigned, 0 if word == 0 else next(remaining, None)
        if offset is None:
            raise ValueError("a control word without its offset")
        rules.append(_flex_rule(control, offset) if control else None)
    cfa, ra, fp = rules + [None] * (3 - len(rules))
    if cfa is None or cfa.base == CFA:
        raise ValueError("a CFA that is not based on a register")
    abi = table.abi
    return cfa._replace(offset=cfa.offset * abi.cfa_scale + abi.cfa_adjust), ra, fp


def _flex_rule(control: int, offset: int) -> Rule:
    """Return the rule of a pair.

    Bits of the control word: 0: the base is a register; 1: dereference; 2: always 0; 3 and up: the register.
    """
    register = control >> 3
    if control & 4 or register > 127:
        # gas 2.46 emits register 0x1fffffff for an rbp saved relative to another register
        raise ValueError(f"control word {control:#x}")
    base = register if control & 1 else CFA
    return Rule(base, offset, deref=bool(control & 2))


def may_be_wrong(table: "SFrameTable", rows: Sequence[SFrameFre]) -> bool:
    """Return True if these are the rows of PLT stubs in V1.

    ld 2.40 writes these rows for stubs with and without endbr64.  With endbr64, the rows are wrong.
    """
    return table.version == 1 and tuple((row.start, row.cfa) for row in rows) in _PLT_SHAPES


def repair(
    table: "SFrameTable", fde: "SFrameFde", rows: Sequence[SFrameFre]
) -> tuple[tuple[SFrameFre, ...], str] | None:
    """Return correct rows, and a text about the repair, if ld wrote wrong rows; None: no repair is needed.

    ld 2.44 to 2.47.50 write a single row of sp+16 for a slot of `.plt.got`.  This row is always wrong.
    """
    is_wrong = fde.masked and len(rows) == 1 and rows[0].cfa == _SP_16 and table.abi.arch is AMD64
    if not is_wrong:
        return None
    what = f".plt.got at {fde.start:#x} says sp+16, repaired to sp+8 (known bug of ld)"
    return (rows[0]._replace(cfa=_SP_8),), what
