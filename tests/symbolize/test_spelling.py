"""Symbols are spelled as the options say: raw, without clones, without arguments."""

import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.spelling import simplify, spell

PLAIN, RAW, MERGED, SIMPLE = (
    SymbolOptions(),
    SymbolOptions(raw=True),
    SymbolOptions(merge_clones=True),
    SymbolOptions(simplify=True),
)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("_Z1fi", PLAIN, "f(int)"),
        ("_Z1fi", RAW, "_Z1fi"),
        ("printf@plt", PLAIN, "printf@plt"),
        ("_Z1fi@plt", PLAIN, "f(int)@plt"),
        ("__libc_start_main@@GLIBC_2.34", PLAIN, "__libc_start_main"),
        ("memcpy@GLIBC_2.2.5", RAW, "memcpy@GLIBC_2.2.5"),
        ("_ZNSt1aC1Ev@@GLIBCXX_3.4", PLAIN, "std::a::a()"),
        ("parse.cold", PLAIN, "parse.cold"),
        ("parse.cold", MERGED, "parse"),
        ("parse.part.0", MERGED, "parse"),
        ("parse.constprop.1.isra.0.cold", MERGED, "parse"),
        ("parse.llvm.8012451990884947553", MERGED, "parse"),
        ("parse.__uniq.123.llvm.456", MERGED, "parse"),
        ("_Z1fi.part.0", MERGED, "f(int)"),
        ("_Z1fi.cold", PLAIN, "f(int) [clone .cold]"),
        ("_Z1fi.cold", SymbolOptions(raw=True, merge_clones=True), "_Z1fi"),
        ("a.cold_start", MERGED, "a.cold_start"),
        ("main.part", MERGED, "main"),
        (".cold", MERGED, ".cold"),
        ("_Z1fIiEvT_", SIMPLE, "f"),
        ("_ZN4core3ptr13drop_in_place17h0123456789abcdefE", SIMPLE, "core::ptr::drop_in_place"),
        ("plain<c>", SIMPLE, "plain<c>"),
        ("_D3std5stdio6FinishZv", PLAIN, "_D3std5stdio6FinishZv"),
        ("$s4main3fooyyF", PLAIN, "$s4main3fooyyF"),
    ],
)
def test_spell_follows_the_options(name, options, expected):
    assert spell(name, options) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("void a::f<int>(b::c<d>) const", "a::f"),
        ("std::vector<int, std::allocator<int> >::operator[](unsigned long)", "std::vector::operator[]"),
        ("bool operator< <int>(A<int> const&)", "operator<"),
        ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
        ("std::function<void (int)>::operator()(int) const", "std::function::operator()"),
        ("A::operator bool() const", "A::operator bool"),
        ("f(int) [clone .cold]", "f [clone .cold]"),
        (
            "v8::internal::(anonymous namespace)::X<(v8::K)3>::Run()",
            "v8::internal::(anonymous namespace)::X::Run",
        ),
        ("std::ostream& std::operator<< <char>(std::ostream&, char const*)", "std::operator<<"),
        ("A<(B)1>::operator->() const", "A::operator->"),
        ("operator new(unsigned long)", "operator new"),
        ("main::{lambda(int)#1}::operator()(int) const", "main::{lambda#1}::operator()"),
        ("a::b() const &&", "a::b"),
        ("int (*foo())(int)", "int (*foo())(int)"),
        ("f<(a>b)>()", "f<(a>b)>()"),
        ("()", "()"),
        ("", ""),
    ],
)
def test_simplify_removes_arguments_and_types(text, expected):
    assert simplify(text) == expected


@given(st.text(alphabet="ab <>()-,:&operator[]{}~ const", max_size=60))
def test_simplify_never_raises_and_never_returns_an_empty_name(text):
    assert bool(simplify(text)) == bool(text)


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_simplified_functions_of_libstdcxx_have_no_arguments():
    """The brackets that remain belong to an operator."""
    path = next((p for p in ("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/lib64/libstdc++.so.6")
                 if shutil.os.path.exists(p)), None)  # fmt: skip
    if path is None:
        pytest.skip("no libstdc++")
    out = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    names = {line.split()[-1].partition("@")[0] for line in out.stdout.splitlines() if line[17] in "TtWw"}
    spelled = {name: spell(name, SIMPLE) for name in names if name.startswith("_Z")}
    before_operators = [text.replace("(anonymous namespace)", "").partition("operator")[0]
                        for text in spelled.values()]  # fmt: skip
    assert len(spelled) > 1000
    assert [text for text in before_operators if set("<>()") & set(text)] == []
