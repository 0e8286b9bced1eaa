"""The text of a frame is one safe line, whatever is in its name."""

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.symbolize.named_frame import address_text, clean_name

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
    ("module", "address", "expected"),
    [
        ("/usr/lib/libfoo.so.1", 0x1234, "[libfoo.so.1+0x1234]"),
        ("/usr/lib/libfoo.so.1", 0, "[libfoo.so.1+0x0]"),
        ("/srv/a;b\nc.so", 0x10, "[a:b?c.so+0x10]"),
        ("[vdso]", 0x7C0, "[vdso+0x7c0]"),
        ("relative.so", 0x7C0, "[relative.so+0x7c0]"),
        ("/", 0x10, "[?+0x10]"),
        ("[]", 0x10, "[?+0x10]"),
        (None, 0x7F00DEADBEEF, "[0x7f00deadbeef]"),
        ("", 0x7F00DEADBEEF, "[0x7f00deadbeef]"),
    ],
)
def test_a_frame_without_a_symbol_has_module_and_address(module, address, expected):
    assert address_text(module, address) == expected


@given(st.text(), st.none() | st.text(), st.integers(0, (1 << 64) - 1))
def test_any_frame_text_is_one_field_of_one_line(symbol, module, address):
    for text in (clean_name(symbol), address_text(module, address)):
        assert text
        assert ";" not in text
        assert len(text.splitlines()) == 1
        assert text.encode("utf-8")
        assert clean_name(text) == text
