"""Makes text from outside harmless: it must not move the cursor, set a colour or reorder the screen."""

from collections.abc import Iterable


def printable(text: str) -> str:
    """Return `text` with `?` for controls, separators, bidirectional marks and surrogates."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text


def printable_lines(lines: Iterable[str]) -> str:
    """Return the printable form of all lines, as one text."""
    return "".join(f"{printable(line)}\n" for line in lines)
