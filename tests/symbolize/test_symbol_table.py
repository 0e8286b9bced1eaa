"""Which symbol a table finds for an address, and that no bytes make it raise."""

import importlib.util
import random
import tracemalloc
from itertools import permutations
from pathlib import Path
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.symbolize import symbol_table
from sfsample.symbolize.symbol_table import Symbol
from tests.builders.symbol_tables import SymbolTable

_spec = importlib.util.spec_from_file_location(
    "symtab_builder", Path(__file__).parents[1] / "builders" / "symtab_builder.py"
)
b = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(b)
Sym = b.Sym


def table(*symbols, byteorder="little", executable=()):
    return SymbolTable(*b.build(*symbols, byteorder=byteorder), byteorder, executable)


def name_at(vaddr, *symbols, **options):
    found = table(*symbols, **options).find(vaddr)
    return found and found.name


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_a_function_covers_its_size(byteorder):
    t = table(Sym("f", 0x1000, 16), Sym("g", 0x1020, 1), byteorder=byteorder)
    assert len(t) == 2
    assert t.find(0xFFF) is None
    assert t.find(0x1000) == t.find(0x100F) == Symbol("f", 0x1000, 16)
    assert t.find(0x1010) is None
    assert t.find(0x1020) == Symbol("g", 0x1020, 1)
    assert t.find(0x1021) is None


def test_the_order_of_the_table_does_not_matter():
    symbols = [Sym("a", 0x30, 8), Sym("b", 0x10, 8), Sym("c", 0x20, 8), Sym("big", 0, 0x100)]
    for order in permutations(symbols):
        t = table(*order)
        assert [t.find(at).name for at in (0x17, 0x27, 0x37)] == ["b", "c", "a"]
        assert {t.find(at).name for at in (0x28, 0, 0xFF)} == {"big"}


def test_an_indirect_function_is_a_function():
    assert name_at(0x10, Sym("memcpy", 0x10, 8, kind=b.IFUNC)) == "memcpy"


@pytest.mark.parametrize("section", [b.UNDEF, b.ABS, b.COMMON, 0xFF00])
def test_a_symbol_without_a_section_is_not_code(section):
    assert name_at(0x10, Sym("f", 0x10, 8, section=section)) is None


def test_an_extended_section_number_is_a_section():
    assert name_at(0x10, Sym("f", 0x10, 8, section=b.XINDEX)) == "f"


@pytest.mark.parametrize("kind", [b.OBJECT, b.SECTION, 4, 5, 6])
def test_symbols_of_other_types_are_not_code(kind):
    assert name_at(0x10, Sym("data", 0x10, 8, kind=kind), executable=[(0, 0x100)]) is None


def test_aliases_are_chosen_the_same_way_in_any_order():
    preference = [
        Sym("write", 8, 8, binding=b.WEAK),
        Sym("writev", 8, 8),
        Sym("writex", 8, 8, binding=10),  # STB_GNU_UNIQUE
        Sym("_write", 8, 8),
        Sym("__write", 8, 8),
        Sym("w", 8, 8, binding=b.LOCAL),
        Sym("_w", 8, 8, binding=b.LOCAL),
    ]
    rng = random.Random(1)  # noqa: S311
    for first in range(len(preference)):
        rest = preference[first:]
        for _ in range(10):
            assert name_at(9, *rng.sample(rest, len(rest))) == preference[first].name


def test_an_alias_must_cover_the_address():
    symbols = (Sym("short", 0, 4), Sym("longer_name", 0, 8))
    assert name_at(3, *symbols) == "short"
    assert name_at(4, *symbols) == "longer_name"


def test_the_outer_function_is_found_after_nested_functions():
    nested = [Sym(f"in{i}", 0x100 + 16 * i, 8) for i in range(200)]
    t = table(Sym("outer", 0x100, 0x10000), *nested)
    assert t.find(0x100 + 16 * 199 + 4).name == "in199"
    assert t.find(0x100 + 16 * 199 + 12).name == "outer"
    assert t.find(0x5000).name == "outer"


def test_the_search_for_an_outer_function_is_limited():
    nested = [Sym(f"in{i}", 16 + 16 * i, 8) for i in range(10_000)]
    t = table(Sym("outer", 0, 1 << 40), *nested)
    assert t.find(16 * 10_001) is None
    assert t.find(20).name == "in0"
    assert t.find(28).name == "outer"


def test_a_symbol_without_a_size_extends_to_the_next_symbol():
    t = table(Sym("a", 0x10), Sym("b", 0x20, 4), Sym("c", 0x30))
    assert t.find(0x0F) is None
    assert t.find(0x10) == t.find(0x1F) == Symbol("a", 0x10, 0)
    assert t.find(0x20).name == "b"
    assert t.find(0x24) is None  # after b, whose size is known; a does not continue
    assert t.find(0x30).name == t.find(0xFFFF).name == "c"


def test_a_symbol_without_a_size_stays_in_its_section():
    t = table(Sym("_init", 0x1000), Sym("main", 0x2000, 8), executable=[(0x1000, 0x1020), (0x1020, 0x3000)])
    assert t.find(0x101F).name == "_init"
    assert t.find(0x1020) is None  # .plt, which has no symbols
    assert t.find(0x2000).name == "main"


def test_a_stated_size_is_preferred_to_a_guess():
    t = table(Sym("outer", 0x10, 0x20), Sym("inner", 0x18))
    assert t.find(0x18).name == "outer"
    assert t.find(0x30).name == "inner"


def test_a_label_is_used_where_there_is_no_function():
    label = Sym("_start", 0x10, kind=b.NOTYPE)
    assert name_at(0x14, label) is None
    assert name_at(0x14, label, executable=[(0x20, 0x30)]) is None
    assert name_at(0x14, label, executable=[(0, 0x30)]) == "_start"
    assert name_at(0x14, label, Sym("f", 0x10, 8), executable=[(0, 0x30)]) == "f"
    assert name_at(0x10, label, Sym("zzzzzzzzz", 0x10, 0), executable=[(0, 0x30)]) == "zzzzzzzzz"
    assert name_at(0x10, label._replace(binding=b.LOCAL), executable=[(0, 0x30)]) == "_start"
    assert name_at(0x18, label._replace(size=8), executable=[(0, 0x30)]) is None


@pytest.mark.parametrize("name", ["$x", "$d.12", ".L42", ""])
def test_internal_assembler_labels_are_ignored(name):
    mark = Sym(name, 0x14, kind=b.NOTYPE)
    t = table(Sym("_start", 0x10, kind=b.NOTYPE), mark, executable=[(0, 0x30)])
    assert len(t) == 1
    assert t.find(0x18).name == "_start"


def test_executable_ranges_may_overlap_touch_be_empty_or_backward():
    ranges = [(0x20, 0x10), (0x30, 0x30), (0x100, 0x200), (0x180, 0x240), (0x50, 0x60), (0x60, 0x70)]
    t = table(Sym("a", 0x50), Sym("b", 0x100), executable=ranges)
    assert [bool(t.find(at)) for at in (0x5F, 0x60, 0x23F, 0x240)] == [True, False, True, False]


def test_a_symbol_with_a_name_outside_the_string_table_is_ignored():
    assert name_at(0, Sym("f", 0, 8, name_offset=1 << 31)) is None
    assert name_at(0, Sym("f", 0, 8, name_offset=0)) is None
    assert name_at(0, Sym("f", 0, 8, name_offset=99), Sym("g", 0, 8)) == "g"
    symtab, strtab = b.build(Sym("function", 0, 8))
    assert SymbolTable(symtab, strtab[:-1], "little").find(0) is None  # the table ends inside the name


def test_an_unnamed_inner_symbol_does_not_hide_the_outer():
    assert name_at(0x12, Sym("outer", 0, 0x100), Sym("", 0x10, 8)) == "outer"


def test_a_truncated_record_is_ignored():
    symtab, strtab = b.build(Sym("f", 0, 8), Sym("g", 8, 8))
    for cut in range(1, 25):
        t = SymbolTable(symtab[:-cut], strtab, "little")
        assert (t.find(0).name, t.find(8)) == ("f", None)


def test_a_size_that_wraps_around_covers_nothing():
    t = table(Sym("wraps", 0x10, (1 << 64) - 1), Sym("ends", (1 << 64) - 8, 8), Sym("f", 0x20, 8))
    assert t.find(0x18) is None
    assert t.find(0x20).name == "f"
    assert t.find((1 << 64) - 1) is None
    assert t.find(-1) is None
    assert t.find(1 << 64) is None


def test_names_may_be_long_or_not_ascii():
    long = "x" * 5000
    assert name_at(0, Sym(long, 0, 8)) == long
    assert name_at(0, Sym("y" * (1 << 20), 0, 8)) is None
    assert name_at(0, Sym("f\udcff", 0, 8)) == "f\ufffd"
    assert name_at(0, Sym("größe", 0, 8)) == "größe"


def test_a_memoryview_may_have_any_format():
    symtab, strtab = b.build(Sym("f", 0, 8))
    assert SymbolTable(memoryview(symtab).cast("Q"), memoryview(strtab), "little").find(7).name == "f"


def test_an_empty_table_finds_nothing():
    t = SymbolTable(b"", b"", "little")
    assert len(t) == 0
    assert t.find(0) is None


def test_more_aliases_than_the_limit():
    t = table(*(Sym(f"a{i:05}", 0, 8) for i in range(5000)))
    assert t.find(0).name == "a00000"


def test_300_000_symbols_stay_packed():
    count = 300_000
    rng = random.Random(7)  # noqa: S311
    starts = list(range(0x1000, 0x1000 + 32 * count, 32))
    rng.shuffle(starts)
    strtab = b"\0" + b"".join(b"f%08x\0" % start for start in starts)
    symtab = b"".join(pack("<IBBHQQ", 1 + 10 * i, 0x12, 0, 1, start, 24) for i, start in enumerate(starts))
    tracemalloc.start()
    t = SymbolTable(symtab, strtab, "little")
    in_use, peak = tracemalloc.get_traced_memory()
    snapshot = tracemalloc.take_snapshot()
    tracemalloc.stop()
    assert len(t) == count
    assert in_use < 28 * count  # 8 + 4 + 8 bytes for each symbol, and spare room of the arrays
    assert peak < 240 * count  # the integers of one sort, freed afterwards
    assert sum(s.count for s in snapshot.statistics("filename")) < 100  # objects
    for start in rng.sample(starts, 2000):
        assert t.find(start) == t.find(start + 23) == Symbol(f"f{start:08x}", start, 24)
        assert t.find(start + 24) is None


_near = st.integers(0, 40) | st.integers(0, (1 << 64) - 1)


@given(st.binary(max_size=400), st.binary(max_size=60), st.sampled_from(["little", "big"]), st.lists(_near))
def test_no_bytes_raise(symtab, strtab, byteorder, addresses):
    t = SymbolTable(symtab, strtab, byteorder, [(0, 1 << 64)])
    for vaddr in addresses:
        found = t.find(vaddr)
        assert found is None or (found.name and found.start <= vaddr)


_symbols = st.builds(
    Sym,
    name=st.sampled_from(["a", "b", "_c", "dd", "$x", ""]),
    start=_near,
    size=_near,
    kind=st.sampled_from([b.FUNC, b.NOTYPE, b.IFUNC, b.OBJECT]),
    binding=st.integers(0, 2),
    section=st.sampled_from([0, 1, b.ABS]),
    name_offset=st.none(),
)


@given(st.lists(_symbols, max_size=12), st.lists(_near, min_size=1), st.booleans())
def test_find_agrees_with_a_linear_search(symbols, addresses, labels):
    t = table(*symbols, executable=[(0, 1 << 64)] if labels else ())
    for vaddr in addresses:
        assert t.find(vaddr) == linear_search(symbols, vaddr, labels)


def linear_search(symbols, vaddr, labels):
    """Apply the rules in the docstring of symbol_table to a list of symbols."""
    defined = [s for s in symbols if s.section == 1 and s.start <= vaddr]
    functions = [s for s in defined if s.kind in (b.FUNC, b.IFUNC)]
    usable = [s for s in defined if labels and s.kind == b.NOTYPE and s.name not in ("", "$x")]
    stated = [s for s in functions if s.size]
    covering = [s for s in stated if s.name and vaddr < s.start + s.size < 1 << 64]
    if covering:
        return best_of(covering)
    guessed = [s for s in functions if not s.size] + usable
    nearest = max((s.start for s in guessed), default=0)
    found = [s for s in guessed if s.start == nearest and s.name]
    best = best_of([s for s in found if not s.size or vaddr < s.start + s.size < 1 << 64])
    if best and not best.size and any(s.start > best.start for s in stated):
        return None
    return best


def best_of(symbols):
    def order(s):
        is_label, is_local = s.kind == b.NOTYPE, s.binding == b.LOCAL
        return -s.start, is_label, is_local, s.name[0] == "_", len(s.name), s.name, s.size

    best = min(symbols, key=order, default=None)
    return best and Symbol(best.name, best.start, best.size)


def test_a_look_up_tries_a_limited_number_of_records_and_says_so():
    """65,536 symbols of which no name has an end took 2.6 s for each address."""
    symbols = [Sym("", 0x1000 + n // 256, 0x1000, name_offset=1) for n in range(1024)]
    symtab, _ = b.build(*symbols)
    reads = []

    class Strings(bytes):
        def __getitem__(self, key):
            reads.append(key)
            return super().__getitem__(key)

    hostile = SymbolTable(symtab, b"\0" + b"a" * 20_000, "little")
    hostile._names = Strings(hostile._names)
    assert hostile.find_stated(0x1100) is None
    assert len(reads) <= 2 * 512
    assert hostile.limit == "a look-up tries 512 symbols that may enclose an address"


def test_a_name_that_is_too_long_is_said():
    hostile = table(Sym("y" * 10_001, 0x1000, 8))
    assert hostile.find(0x1000) is None
    assert hostile.limit == "a name has more than 10000 bytes"
    longest = table(Sym("y" * 10_000, 0x1000, 8))
    assert longest.find(0x1000).name == "y" * 10_000
    assert longest.limit == ""


def test_of_a_table_that_is_too_long_the_beginning_is_read(monkeypatch):
    monkeypatch.setattr(symbol_table, "_MAX_RECORDS", 3)
    short = table(Sym("f", 0x1000, 8), Sym("g", 0x2000, 8), Sym("h", 0x3000, 8))
    assert [short.find(at) is None for at in (0x1000, 0x2000, 0x3000)] == [False, False, True]
    assert short.limit == "only 3 of 4 symbols were read"
