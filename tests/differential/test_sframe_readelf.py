"""Every function and row of each fixture is that of `readelf --sframe` of the binutils that built it.

The output is committed beside each fixture, because no single readelf reads all versions.  What readelf does
not show, or shows differently, is translated here:

* PCMASK rows start at an offset in the block (and the heading has `[m]`); other rows at an address.
* "f" is the fixed slot; readelf for V1 prints "u" for it.  "u" as FP: unchanged.  A flexible row without an
RA
  word, where an FP word follows, has "U".
* An RA or FP that is a word at an offset from the CFA is `c-16` in every kind of row; a CFA that is a stored
word
  is `(fp-8)`.
* Attributes: "F" flexible, "S" signal trampoline.  V1 and V2 have none on AMD64.
"""

from pathlib import Path

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.formats.elf.image import ElfImage
from sfsample.formats.sframe import SFrameFde, SFrameFre, SFrameTable, read_tables
from tests.builders.readelf_sframe import Shown, parse

FIXTURES = Path(__file__).parent.parent / "fixtures"
DUMPS = sorted(FIXTURES.glob("v*/*.readelf"))

NAMES = {7: "sp", 6: "fp"}


def text_of(rule: Rule) -> str:
    if rule.base == CFA:
        assert rule.deref
        return f"c{rule.offset:+d}"
    text = f"{NAMES.get(rule.base, f'r{rule.base}')}{rule.offset:+d}"
    return f"({text})" if rule.deref else text


def row_as_shown(table: SFrameTable, fde: SFrameFde, fre: SFrameFre) -> tuple[int, str, str, str]:
    start = fre.start if fde.masked else fde.start + fre.start
    if fre.cfa is None:
        return start, "", "", "undefined"
    fp = "u" if fre.fp is None else text_of(fre.fp)
    if fre.ra is not None:
        ra = text_of(fre.ra)
    elif table.version == 1:
        ra = "u"
    else:
        ra = "U" if fde.fde_type == 1 and fre.fp is not None else "f"
    return start, text_of(fre.cfa), fp, ra


def as_shown(table: SFrameTable, fde: SFrameFde) -> Shown:
    rows = table.rows(fde)
    assert [fre.problem for fre in rows] == [None] * fde.num_fres
    attributes = "F" * (fde.fde_type == 1) + "S" * fde.signal
    shown = [row_as_shown(table, fde, fre) for fre in rows]
    return Shown(fde.start, fde.size, fde.masked, attributes, shown)


def table_of(image: ElfImage) -> SFrameTable:
    found = image.sframe()
    assert found is not None
    [table] = read_tables(*found, machine=(image.machine, image.byteorder), executable=image.executable)
    assert table.problems == []
    return table


@pytest.mark.parametrize("dump", DUMPS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_row_equals_readelf(dump):
    header, expected = parse(dump.read_text())
    table = table_of(ElfImage(dump.with_suffix("").read_bytes(), dump.stem))
    functions = [as_shown(table, fde) for fde in table.fdes()]

    assert header["Version"] == f"SFRAME_VERSION_{table.version}"
    assert (int(header["Num FDEs"]), int(header["Num FREs"])) == (table.num_fdes, table.num_fres)
    assert len(functions) == len(expected) == table.num_fdes > 0
    assert sum(len(f.rows) for f in functions) == sum(len(f.rows) for f in expected) == table.num_fres > 0
    assert functions == expected


def test_every_fixture_with_sframe_has_its_dump():
    files = (path for path in FIXTURES.glob("v*/*") if path.suffix != ".readelf")
    with_sframe = {
        path for path in files if ElfImage(path.read_bytes(), path.name).sframe() is not None
    }  # fmt: skip

    assert with_sframe == {dump.with_suffix("") for dump in DUMPS}
    assert {path.parent.name for path in with_sframe} == {"v1", "v2", "v3"}
