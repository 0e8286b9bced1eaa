"""Writes rules and rows in the notation of `readelf --sframe`.

`sp+8` and `fp+16` are a register plus an offset; `r10+0` is another register, by its DWARF number; `(fp-8)`
is the word stored there; `c-16` is the word stored at an offset from the CFA, and `=c-16` that address
itself; `exp` is a DWARF expression.
"""

from sfsample.core.arch import Arch
from sfsample.core.rule import CFA, Rule
from sfsample.errors import FormatError
from sfsample.formats.sframe.section import SFrameFde, SFrameFre, SFrameTable
from sfsample.inspect.verify import CallerRules


def rule_text(rule: Rule | None, arch: Arch) -> str | None:
    """Return a rule as text; None: there is none, the register is unchanged."""
    if rule is None:
        return None
    if rule.expression:
        return "exp"
    if rule.base == CFA:
        return f"c{rule.offset:+d}" if rule.deref else f"=c{rule.offset:+d}"
    name = {arch.sp: "sp", arch.fp: "fp"}.get(rule.base, f"r{rule.base}")
    text = f"{name}{rule.offset:+d}"
    return f"({text})" if rule.deref else text


def ra_text(fre: SFrameFre, table: SFrameTable) -> str | None:
    """Return the RA rule of a row.

    "undefined": an outermost frame; "fixed": in the slot that the header states; None: unchanged, or a
    damaged row.
    """
    if fre.cfa is None:
        return "undefined" if fre.problem is None else None
    if fre.ra is None:
        return None if table.abi.tracks_ra else "fixed"
    return rule_text(fre.ra, table.abi.arch)


def caller_rules_texts(rules: CallerRules, arch: Arch | None) -> dict[str, str | None]:
    """Return the texts of the rules by "cfa", "ra" and "fp"; None: unchanged."""
    if arch is None or rules.ra is None:
        return {"cfa": None, "ra": "undefined", "fp": None}
    return {
        "cfa": rule_text(rules.cfa, arch),
        "ra": rule_text(rules.ra, arch),
        "fp": rule_text(rules.fp, arch),
    }


def rows_of(fde: SFrameFde, table: SFrameTable) -> tuple[SFrameFre, ...]:
    """Return the rows of a function, none where they are damaged: the findings list the damage."""
    try:
        return table.decode(fde)
    except FormatError:
        return ()
