"""Makes text from outside harmless: such text cannot move the cursor, set a colour or reorder the screen.

It also measures text in the columns of a terminal.  Source of the widths: Unicode Standard Annex #11.
"""

from collections.abc import Iterable
from unicodedata import category, east_asian_width


def printable(text: str) -> str:
    """Return `text` with `?` for controls, separators, bidirectional marks and surrogates."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text


def printable_lines(lines: Iterable[str]) -> str:
    """Return the printable form of all lines, as one text."""
    return "".join(f"{printable(line)}\n" for line in lines)


def columns(text: str) -> int:
    """Return the width of a text: a wide letter (CJK) takes two columns, a combining letter none."""
    return len(text) if text.isascii() else sum(map(_width, text))


def fit(text: str, width: int, end: str = "") -> str:
    """Return a text of at most `width` columns; a longer text is cut, and then ends in `end`."""
    used = kept = 0  # columns of the letters so far; number of letters that leave space for `end`
    for at, letter in enumerate(text, 1):
        used += _width(letter)
        if used > width:
            return text[:kept] + end
        if used <= width - len(end):
            kept = at
    return text


def _width(letter: str) -> int:
    if category(letter) in ("Mn", "Me") or "\u1160" <= letter <= "\u11ff":  # Hangul vowel or final
        return 0
    return 2 if east_asian_width(letter) in "WF" else 1
