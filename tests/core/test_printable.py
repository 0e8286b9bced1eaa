"""Widths are columns of a terminal, not characters."""

import pytest

from sfsample.core.printable import columns, fit


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("main", 4), ("µs", 2), ("漢字", 4), ("e\u0301", 1), ("\u1112\u1161\u11ab", 2),
     ("\u0915\u0942", 1)],
    ids=["empty", "ASCII", "Latin", "CJK", "combining accent", "Korean in parts", "Devanagari vowel sign"],
)  # fmt: skip
def test_columns(text: str, width: int) -> None:
    assert columns(text) == width
    assert fit(text, width, "...") == text


def test_fit_cuts_before_a_letter_that_is_too_wide() -> None:
    assert fit("a漢字", 4) == "a漢"
    assert fit("漢字漢字", 7, "...") == "漢字..."
    assert fit("漢字漢字", 6, "...") == "漢..."
    assert fit("cafe\u0301s and more", 7, "...") == "cafe\u0301..."
    assert fit("main", 0) == ""


def test_fit_reads_only_what_it_keeps() -> None:
    assert fit("漢" * 50_000_000, 10) == "漢" * 5  # within a moment
