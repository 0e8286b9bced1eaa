"""Builds the value of a command from the values of argparse, and spells such a value as words again.

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


def build(kind: type[_T], arguments: dict[str, Any]) -> _T:
    """Return a value of a dataclass from `arguments`, by names of fields; remove those that it uses.

    A field that is a dataclass too is built from the same names.  Raises KeyError if a field is missing.
    """
    built: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(field.type):
            built[field.name] = build(field.type, arguments)  # type: ignore[arg-type]
        else:
            value = arguments.pop(field.name)
            built[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**built)


def flat(value: object) -> dict[str, Any]:
    """Return the fields of a value, and those of the values in it, by name, as `build` takes them."""
    return _flat(value, lambda field: getattr(value, field.name))


def defaults(kind: type[Command]) -> dict[str, Any]:
    """Return the defaults of a command's fields, by name."""
    return _flat(kind, lambda field: field.default)


def _flat(value: Any, get: Callable[[Any], Any]) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    result: dict[str, Any] = {}
    for field in fields(value):
        content = get(field)
        assert content is not MISSING, field  # noqa: S101 - our own invariant
        result |= flat(content) if is_dataclass(field.type) else {field.name: content}
    return result


def set_defaults(parser: ArgumentParser, kind: type[Command]) -> None:
    """Give each flag the default of its field, and show it in its help."""
    by_name = defaults(kind)
    parser.set_defaults(**{name: [*v] if isinstance(v, tuple) else v for name, v in by_name.items()})
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list flags
        if "{default}" in (action.help or ""):
            action.help = str(action.help).replace("{default}", _spelled(action, by_name[action.dest]))


def as_words(command: Command, name: str, parser: ArgumentParser) -> list[str]:
    """Return the words that `parse` reads as this command: its name, and the values that are no defaults."""
    content, default = flat(command), defaults(type(command))
    words, positional, program = name.split(), list[str](), content.pop("program", None)
    for action in parser._actions:  # noqa: SLF001
        if action.dest in content and content[action.dest] != default[action.dest]:
            spelled = _words(action, content[action.dest])
            (words if action.option_strings else positional).extend(spelled)
            if spelled:
                del content[action.dest]
    return [*words, *positional, *(() if program is None else ("--", *program))]


def _words(action: Action, value: Any) -> list[str]:  # noqa: ANN401 - a value of any flag
    """Return the words that give a flag this value; none if only another flag can have the value."""
    flag, *others = action.option_strings[-1:] or [""]
    if isinstance(action, BooleanOptionalAction):
        flag, *others = action.option_strings
        return [flag if value else others[0]]
    if action.nargs == 0 or (action.nargs == "?" and value == action.const):
        return [flag] if value == action.const else []
    if action.choices is not None and value not in action.choices:
        return []
    items = value if isinstance(value, tuple) and action.type not in _WHOLE else [value]
    return [f"{flag}={text}" if flag else text for text in (_spelled(action, item) for item in items)]


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


# functions that spell a value, by the function that parses it; `str` spells other values
_SPELLED: dict[object, Callable[[Any], str]] = {
    quantities.seconds: quantities.spelled_seconds, values.age: quantities.spelled_seconds,
    quantities.large_size: quantities.spelled_size, values.size: quantities.spelled_size,
    values.rate: _plain, values.percent: _percent, values.growth: _percent,
    values.pids: str, values.steppers: ",".join, values.label: "=".join, values.listen: _listen,
    values.condition: lambda condition: condition.text, values.push: lambda backend: backend.text,
    when.when: when.spelled_when, when.since: when.spelled_when, when.when_or_build: when.spelled_when,
}  # fmt: skip
_WHOLE = (values.steppers, values.listen)  # parsers whose value is a tuple, spelled as one word
