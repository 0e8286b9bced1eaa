"""Takes values out of a JSON document and checks their types.

A document that is not as expected raises BadInput, which names the place in the document
(`stacks[3].frames`).

Invariant: nothing else is raised, whatever the document holds (tests/report/test_report.py).
"""

from typing import Any

from sfsample.errors import BadInput

_MAX_COUNT = (1 << 64) - 1


class JsonValue:
    """A value, and its place in the document."""

    def __init__(self, value: Any, place: str = "") -> None:  # noqa: ANN401 - any JSON
        self.value = value
        self.place = place

    def error(self, expected: str) -> BadInput:
        """Return the error that states the place and what was expected there."""
        return BadInput(f"{self.place or 'the document'}: not {expected}")

    def field(self, name: str) -> "JsonValue":
        """Return a member of an object; null where it is missing."""
        if not isinstance(self.value, dict):
            raise self.error("an object")
        return JsonValue(self.value.get(name), f"{self.place}.{name}".lstrip("."))

    def items(self) -> list["JsonValue"]:
        """Return the members of a list."""
        if not isinstance(self.value, list):
            raise self.error("a list")
        return [JsonValue(value, f"{self.place}[{at}]") for at, value in enumerate(self.value)]

    def known(self) -> bool:
        """Return whether the value is not null."""
        return self.value is not None

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            raise self.error("a text")
        return self.value

    def flag(self) -> bool:
        """Return a boolean."""
        if not isinstance(self.value, bool):
            raise self.error("true or false")
        return self.value

    def number(self) -> float:
        """Return a finite number."""
        if type(self.value) not in (int, float) or not abs(self.value) < 1e300:
            raise self.error("a number")
        return float(self.value)

    def count(self, below: int = _MAX_COUNT + 1) -> int:
        """Return a natural number less than `below`."""
        if type(self.value) is not int or not 0 <= self.value < below:
            raise self.error("a natural number" if below > _MAX_COUNT else f"a number under {below}")
        return self.value

    def counts(self, below: int = _MAX_COUNT + 1) -> list[int]:
        """Return a list of natural numbers less than `below`; fast, because such lists are long."""
        values = self.value
        if isinstance(values, list) and all(type(value) is int and 0 <= value < below for value in values):
            return values
        return [item.count(below) for item in self.items()]

    def address(self) -> int:
        """Return the 64-bit number that a hexadecimal string states."""
        digits = self.text().removeprefix("0x")
        if not digits.isalnum() or len(digits) > 16:
            raise self.error('an address ("0x1f")')
        try:
            return int(digits, 16)
        except ValueError:
            raise self.error('an address ("0x1f")') from None
