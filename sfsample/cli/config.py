"""Reads the flags of `watch` from a TOML file.  A key is the name of a flag without the dashes.

sfsample turns the file into words, and puts these words before the typed words, so a typed flag wins.  To
read the file again, sfsample executes itself with execve(2), so nothing of the old configuration remains.
"""

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sfsample.cli.terminal import say_at
from sfsample.core.filesystem import read_regular
from sfsample.core.foreign import total
from sfsample.errors import SfsampleError, UsageError
from sfsample.watching.own_program import own_program

if TYPE_CHECKING:
    from sfsample.cli.parse import FlagHelp

_MAX_BYTES = 1 << 16
_MAX_DOTS = 1000  # dots in the file; time and memory of tomllib grow with the square of the dots in a key
_HELP = "the keys are the long flags of `sfsample watch --help`, without the dashes"


def words_of(path: str, flags: Iterable["FlagHelp"]) -> list[str]:
    """Return the words for the keys of the file; `flags`: all flags of `watch`.  Raises SfsampleError."""
    takes_value = {name: bool(flag.value) for flag in flags for name in flag.names if name.startswith("--")}
    words: list[str] = []
    for key, value in _read(path).items():
        flag = f"--{key}"
        if flag not in takes_value:
            raise UsageError(f"unknown key: {key}", _HELP)
        words += _words(flag, value, takes_value)
    return words


def _words(flag: str, value: object, takes_value: Mapping[str, bool]) -> Iterator[str]:
    """Yield the words for one key.  A list repeats the flag; a table repeats the flag with KEY=VALUE."""
    pairs = ((key, _text(item)) for key, item in value.items()) if isinstance(value, dict) else ()
    values = [text and f"{key}={text}" for key, text in pairs] if isinstance(value, dict) else value
    for item in values if isinstance(values, list) else [values]:
        if isinstance(item, bool) and not takes_value[flag]:
            if item:
                yield flag
            elif f"--no-{flag[2:]}" in takes_value:
                yield f"--no-{flag[2:]}"
        elif takes_value[flag] and (text := _text(item)) is not None:
            yield f"{flag}={text}"
        else:
            wanted = "a text or a number" if takes_value[flag] else "true or false"
            raise UsageError(f"{flag[2:]}: not {wanted}: {total(str)(item)}", _HELP)


@total
def _text(value: object) -> str:
    """Return a text or a number as a word; None (by `total`) for any other value."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        raise TypeError
    return str(value)


def _read(path: str) -> dict[str, Any]:
    import tomllib

    try:
        data = read_regular(path, _MAX_BYTES, streams=True)
    except OSError as failure:
        raise SfsampleError(
            f"cannot read: {path}: {failure.strerror}", "--config names a TOML file"
        ) from None
    if data.count(b".") > _MAX_DOTS:
        raise UsageError(f"more than {_MAX_DOTS} dots", _HELP)
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as failure:
        raise UsageError(f"not TOML: {failure}", _HELP) from None


def execute_anew(why: str) -> None:
    """Replace this process by a new sfsample with the same command line; return if the flags are refused."""
    from sfsample.cli.parse import parse

    try:
        parse(sys.argv[1:])
    except SfsampleError as failure:
        say_at(f"not reloaded: {failure}", *failure.help, "the watch goes on as before")
        return
    say_at(why)
    for number in (signal.SIGHUP, signal.SIGUSR1):  # they would end the new program before it has handlers
        signal.signal(number, signal.SIG_IGN)
    program = own_program(*sys.argv[1:])
    os.execv(program[0], program)  # noqa: S606 - no shell is needed
