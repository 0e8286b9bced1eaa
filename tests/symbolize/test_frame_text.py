"""The text of a frame is one safe line, whatever is in its name."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.symbolize.frame_text import clean_name, frame_name

CONTROL = {"Cc", "Cs", "Zl", "Zp"}
BIDIRECTIONAL = {"LRE", "LRO", "RLE", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("main", "main"),
        ("std::map<int, A>::at(int const&) const", "std::map<int, A>::at(int const&) const"),
        ("a;b;;c", "a:b::c"),
        ("a\nb\r\tc\0", "a?b??c?"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("c1\x9b31m\x85\x7f", "c1?31m??"),
        ("line\u2028para\u2029", "line?para?"),
        ("user\u202eexe.txt\u2066x\u2069\u200f", "user?exe.txt?x??"),
        ("lone\ud800\udcff", "lone??"),
        ("größe 東京 🦀", "größe 東京 🦀"),
        ("", "?"),
        (";", ":"),
    ],
)
def test_clean_name_replaces_unsafe_characters(name, expected):
    assert clean_name(name) == expected


def test_every_control_character_is_replaced():
    for code in range(sys.maxunicode + 1):
        char = chr(code)
        if unicodedata.category(char) in CONTROL or unicodedata.bidirectional(char) in BIDIRECTIONAL:
            assert clean_name(char) == "?", hex(code)


@pytest.mark.parametrize(
    ("symbol", "module", "address", "expected"),
    [
        ("main", "/usr/bin/app", 0x1234, "main"),
        ("_Z3foov", None, 0x1234, "foo()"),
        ("_ZN3a;bC1Ev", "/lib/x", 1, "a:b::a:b()"),
        (None, "/usr/lib/libfoo.so.1", 0x1234, "[libfoo.so.1+0x1234]"),
        ("", "/usr/lib/libfoo.so.1", 0, "[libfoo.so.1+0x0]"),
        (None, "/srv/a;b\nc.so", 0x10, "[a:b?c.so+0x10]"),
        (None, "[vdso]", 0x7C0, "[vdso+0x7c0]"),
        (None, "relative.so", 0x7C0, "[relative.so+0x7c0]"),
        (None, "/", 0x10, "[?+0x10]"),
        (None, "[]", 0x10, "[?+0x10]"),
        (None, None, 0x7F00DEADBEEF, "[0x7f00deadbeef]"),
        (None, "", 0x7F00DEADBEEF, "[0x7f00deadbeef]"),
    ],
)
def test_frame_name_is_symbol_or_module_or_address(symbol, module, address, expected):
    assert frame_name(symbol, module, address) == expected


@given(st.none() | st.text(), st.none() | st.text(), st.integers(0, (1 << 64) - 1))
def test_any_frame_text_is_one_field_of_one_line(symbol, module, address):
    text = frame_name(symbol, module, address)
    assert text
    assert ";" not in text
    assert len(text.splitlines()) == 1
    assert text.encode("utf-8")
    assert clean_name(text) == text
