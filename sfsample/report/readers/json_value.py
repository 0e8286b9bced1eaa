"""Values of a JSON document, taken out by type.

Law: a document that is not what it should be raises BadInput that names the place in it (`stacks[3].frames`);
nothing else is ever raised, whatever the document holds.
"""

from typing import Any

from sfsample.errors import BadInput

_LARGEST = (1 << 64) - 1


class Shape:
    """A value and where in the document it is."""

    def __init__(self, value: Any, where: str = "") -> None:  # noqa: ANN401 - any JSON
        self.value = value
        self.where = where

    def wrong(self, wanted: str) -> BadInput:
        """Return the error that says what was wanted here."""
        return BadInput(f"{self.where or 'the document'}: not {wanted}")

    def field(self, name: str) -> "Shape":
        """Return a member of an object; one that is missing is null."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        return Shape(self.value.get(name), f"{self.where}.{name}".lstrip("."))

    def items(self) -> list["Shape"]:
        """Return the members of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Shape(value, f"{self.where}[{at}]") for at, value in enumerate(self.value)]

    def known(self) -> bool:
        """Whether it is not null."""
        return self.value is not None

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def flag(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self.wrong("true or false")
        return self.value

    def number(self) -> float:
        """Return a finite number."""
        if type(self.value) not in (int, float) or not abs(self.value) < 1e300:
            raise self.wrong("a number")
        return float(self.value)

    def count(self, below: int = _LARGEST + 1) -> int:
        """Return a natural number under `below`."""
        if type(self.value) is not int or not 0 <= self.value < below:
            raise self.wrong("a natural number" if below > _LARGEST else f"a number under {below}")
        return self.value

    def counts(self, below: int = _LARGEST + 1) -> list[int]:
        """Return a list of natural numbers under `below`; quick, for long ones."""
        values = self.value
        if isinstance(values, list) and all(type(value) is int and 0 <= value < below for value in values):
            return values
        return [item.count(below) for item in self.items()]

    def address(self) -> int:
        """Return the number that a hexadecimal string states."""
        digits = self.text().removeprefix("0x")
        if not digits.isalnum() or len(digits) > 16:
            raise self.wrong('an address ("0x1f")')
        try:
            return int(digits, 16)
        except ValueError:
            raise self.wrong('an address ("0x1f")') from None
