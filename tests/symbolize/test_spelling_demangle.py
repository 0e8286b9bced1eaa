"""Demangling of C++ and Rust symbols, hostile ones included."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.symbolize.spelling import demangle


@pytest.mark.parametrize(
    ("mangled", "expected"),
    [
        ("_Z3foov", "foo()"),
        ("_ZNSt6vectorIiSaIiEE4sizeEv", "std::vector<int, std::allocator<int> >::size()"),
        ("_ZN12_GLOBAL__N_13runEv", "(anonymous namespace)::run()"),
        ("_ZZ4mainENKUlvE_clEv", "main::{lambda()#1}::operator()() const"),
        ("_ZThn16_N1A1fEv", "non-virtual thunk to A::f()"),
        ("_ZN1AC2Ev", "A::A()"),
        ("_Z3foov.part.0", "foo() [clone .part.0]"),
        ("_Z3foov.constprop.0.cold", "foo() [clone .constprop.0] [clone .cold]"),
        ("_ZN1A1fEv@@V_3.4", "A::f()@@V_3.4"),
        ("_RNvC6_123foo3bar", "123foo::bar"),
        ("_RNCNvCs2N2TEQjwqGk_7mycrate4main0", "mycrate::main::{closure#0}"),
        ("_RNvC1a1b.llvm.8012451990884947553", "a::b"),  # rustc-demangle drops the suffix too
        ("_ZN4core3fmt9Formatter3pad17h9b2b3a0e5b4d1b31E", "core::fmt::Formatter::pad"),
        ("_ZN30_$LT$A$u20$as$u20$x..Debug$GT$3fmt17h9b2b3a0e5b4d1b31E", "<A as x::Debug>::fmt"),
        ("_ZN1a1b17h9b2b3a0e5b4d1b31E.llvm.123", "a::b"),
        ("_ZN3foo17hxyzE", "_ZN3foo17hxyzE"),
    ],
)
def test_symbols_are_demangled(mangled, expected):
    assert demangle(mangled) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        "main",
        "_start",
        "_Zebra",
        "_Redo",
        "_Z",
        "_R",
        "_ZN3foo",
        "$s4main",
        "?f@@YAXH@Z",
        "f@@GLIBC_2.2.5",
    ],
)
def test_other_names_stay_unchanged(name):
    assert demangle(name) == name


def cxx_doubling(levels):
    """A<A<A<int, int>, ...>, ...>: each level is twice as long as the level inside it."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    levels = min(levels, 36)
    inner = ["S0_", *(f"S{d}_" for d in digits[1:levels])]
    return "_Z1f1AIiiE" + "".join(f"S_I{s}{s}E" for s in inner)


def rust_doubling(levels):
    """((u, u), (u, u)), ... by back references."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name, inner = "_RINvC1a1b", "u"
    for _ in range(levels):
        at = len(name) - 3
        name += f"T{inner}{inner}E"
        inner = "B" + (digits[at // 62] if at >= 62 else "") + digits[at % 62] + "_"
    return name + "E"


@pytest.mark.parametrize(
    "name",
    [
        cxx_doubling(30),
        rust_doubling(60),
        "_RNvB_1a",
        "_Z1f" + "P" * 9000 + "i",
        "_Z1f" + "1AI" * 2400 + "i" + "E" * 2400,
        "_Z1f" + "PF" * 2400 + "v" + "vE" * 2400,
        "_Z1fIX" + "nt" * 3000 + "Lb1EEEvv",
        "_RINvC1a1b" + "R" * 9000 + "uE",
        "_RINvC1a1b" + "T" * 4000 + "E" * 4001,
        "_Z" + "9" * 9000 + "a",
        "_Z1f" + "v" * 10_000,
    ],
)
def test_hostile_names_stay_raw(name):
    assert demangle(name) == name


def test_small_versions_of_hostile_names_are_demangled():
    assert demangle(cxx_doubling(3)).count("int, int") == 1 + 2 + 4 + 8
    assert demangle(rust_doubling(3)).count("((), ())") == 1 + 2 + 4


def test_the_length_of_the_result_is_limited():
    for levels in range(2, 36):
        assert len(demangle(cxx_doubling(levels))) <= 1 << 16
        assert len(demangle(rust_doubling(levels))) <= 1 << 16


def test_a_caller_near_the_recursion_limit_gets_the_raw_or_the_demangled_name():
    def descend():
        result = demangle("_ZN1a1b1c1dIiS_IiS_IiEEEE")
        try:
            return descend() + result[:1]
        except RecursionError:
            return result[:1]

    assert set(descend()) <= set("_a")


@given(st.text(max_size=60), st.sampled_from(["", "_Z", "_R", "_ZN", "_ZN3foo17h0123456789abcdef"]))
def test_no_text_raises_or_becomes_empty(text, prefix):
    name = prefix + text
    assert bool(demangle(name)) == bool(name)


@given(st.text("_ZRNSTICLXBEPFKOi0123456789.$@uhv", max_size=80))
def test_no_mangled_text_raises(text):
    assert demangle("_Z" + text)
    assert demangle("_R" + text)


def test_names_stay_raw_without_the_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "demangle", None)
    assert demangle("_Z3foov") == "_Z3foov"


def test_the_library_is_imported_at_the_first_mangled_symbol():
    code = (
        "import sys; from sfsample.symbolize.spelling import demangle\n"
        "demangle('main'); assert 'demangle' not in sys.modules\n"
        "demangle('_Z3foov'); assert 'demangle' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
