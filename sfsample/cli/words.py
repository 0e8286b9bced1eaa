"""Builds the value of a command from what argparse has read, and spells such a value as words again.

The names of argparse (`dest`) and the fields of `cli/options.py` are the same (tests/cli/test_words.py).
"""

from argparse import Action, ArgumentParser, BooleanOptionalAction
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from sfsample.cli import values, when
from sfsample.cli.options import Command
from sfsample.core import quantities

_T = TypeVar("_T")


def build(kind: type[_T], given: dict[str, Any]) -> _T:
    """Return a value of a dataclass.  `given`: by the names of fields; what is used is removed from it.

    A field that is such a value is built out of the same names.  Raises KeyError where one is not given.
    """
    found: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(field.type):
            found[field.name] = build(field.type, given)  # type: ignore[arg-type]
        else:
            value = given.pop(field.name)
            found[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**found)


def flat(value: object) -> dict[str, Any]:
    """Return the fields of a value, and those of the values in it, by name: what `build` takes."""
    return _flat(value, lambda field: getattr(value, field.name))


def defaults(kind: type[Command]) -> dict[str, Any]:
    """Return the defaults of a command's fields, by name."""
    return _flat(kind, lambda field: field.default)


def _flat(value: Any, get: Callable[[Any], Any]) -> dict[str, Any]:  # noqa: ANN401 - of any dataclass
    found: dict[str, Any] = {}
    for field in fields(value):
        own = get(field)
        assert own is not MISSING, field  # noqa: S101 - our own invariant
        found |= flat(own) if is_dataclass(field.type) else {field.name: own}
    return found


def set_defaults(parser: ArgumentParser, kind: type[Command]) -> None:
    """Let each flag have the default of its field, and show it in its help."""
    usual = defaults(kind)
    parser.set_defaults(**{name: [*own] if isinstance(own, tuple) else own for name, own in usual.items()})
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list flags
        if "{default}" in (action.help or ""):
            action.help = str(action.help).replace("{default}", _spelled(action, usual[action.dest]))


def as_words(command: Command, name: str, parser: ArgumentParser) -> list[str]:
    """Return the words that `parse` reads as this command: its name, and what differs from its defaults."""
    given, usual = flat(command), defaults(type(command))
    words, positional, program = name.split(), list[str](), given.pop("program", None)
    for action in parser._actions:  # noqa: SLF001
        if action.dest in given and given[action.dest] != usual[action.dest]:
            spelled = _words(action, given[action.dest])
            (words if action.option_strings else positional).extend(spelled)
            if spelled:
                del given[action.dest]
    return [*words, *positional, *(() if program is None else ("--", *program))]


def _words(action: Action, value: Any) -> list[str]:  # noqa: ANN401 - a value of any flag
    """Return the words that give a flag this value; none where it cannot have it, but another flag can."""
    flag, *others = action.option_strings[-1:] or [""]
    if isinstance(action, BooleanOptionalAction):
        flag, *others = action.option_strings
        return [flag if value else others[0]]
    if action.nargs == 0 or (action.nargs == "?" and value == action.const):
        return [flag] if value == action.const else []
    if action.choices is not None and value not in action.choices:
        return []
    each = value if isinstance(value, tuple) and action.type not in _WHOLE else [value]
    return [f"{flag}={text}" if flag else text for text in (_spelled(action, one) for one in each)]


def _spelled(action: Action, value: Any) -> str:  # noqa: ANN401
    return _SPELLED.get(action.type, str)(value)


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else repr(number)


def _percent(fraction: float) -> str:
    text = _plain(round(100 * fraction, 9))
    if text != "0" and values.growth(text) == fraction:
        return text
    mantissa, _, exponent = repr(fraction).partition("e")
    return f"{mantissa}e{int(exponent or 0) + 2}"


def _listen(where: str | tuple[str, int]) -> str:
    if isinstance(where, str):
        return f"unix:{where}"
    return f"[{where[0]}]:{where[1]}" if ":" in where[0] else f"{where[0]}:{where[1]}"


# by the function that parses; what is not here is spelled by `str`
_SPELLED: dict[object, Callable[[Any], str]] = {
    quantities.seconds: quantities.spelled_seconds, values.age: quantities.spelled_seconds,
    quantities.large_size: quantities.spelled_size, values.size: quantities.spelled_size,
    values.rate: _plain, values.percent: _percent, values.growth: _percent,
    values.pids: str, values.steppers: ",".join, values.label: "=".join, values.listen: _listen,
    values.condition: lambda one: one.text, values.push: lambda one: one.text,
    when.when: when.spelled_when, when.since: when.spelled_when, when.when_or_build: when.spelled_when,
}  # fmt: skip
_WHOLE = (values.steppers, values.listen)  # whose values are tuples, each for one word
