"""Reads the flags of `watch` from a TOML file, in which each flag has its own name, without dashes.

The file becomes words of the command line, before those that were typed, which therefore win.  So a value
means the same in both, and is checked by the same code.

It is read again by executing sfsample anew: nothing of the old configuration can remain.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from sfsample.cli.terminal import say_at
from sfsample.core.filesystem import read_regular
from sfsample.core.foreign import total
from sfsample.errors import SfsampleError, UsageError
from sfsample.watching.own_program import own_program

_MAX_BYTES = 1 << 16
_MAX_DOTS = 1000  # in the file: tomllib takes time and memory for the square of the dots in a key
_HELP = "the keys are the long flags of `sfsample watch --help`, without the dashes"


def words_of(path: str, takes_value: Mapping[str, bool]) -> list[str]:
    """Return the file as words of the command line.

    `takes_value`: each long flag, with its dashes, and whether it takes a value.  Raises SfsampleError.
    """
    words: list[str] = []
    for key, value in _read(path).items():
        flag = f"--{key}"
        if flag not in takes_value:
            near = get_close_matches(flag, takes_value, n=1)
            raise UsageError(
                f"{path}: unknown key: {key}", *(f"did you mean: {name[2:]}" for name in near), _HELP
            )
        words += _words(path, flag, value, takes_value)
    return words


def _words(path: str, flag: str, value: object, takes_value: Mapping[str, bool]) -> Iterator[str]:
    """Yield the words of one key: a list repeats the flag, a table does so with KEY=VALUE."""
    pairs = ((key, _text(each)) for key, each in value.items()) if isinstance(value, dict) else ()
    values = [text and f"{key}={text}" for key, text in pairs] if isinstance(value, dict) else value
    for each in values if isinstance(values, list) else [values]:
        if isinstance(each, bool) and not takes_value[flag]:
            if each:
                yield flag
            elif f"--no-{flag[2:]}" in takes_value:
                yield f"--no-{flag[2:]}"
        elif takes_value[flag] and (text := _text(each)) is not None:
            yield f"{flag}={text}"
        else:
            wanted = "a text or a number" if takes_value[flag] else "true or false"
            raise UsageError(f"{path}: {flag[2:]}: not {wanted}: {total(str)(each)}", _HELP)


@total
def _text(value: object) -> str:
    """Return a text or a number as a word of the command line; None: it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or "\0" in str(value):
        raise TypeError
    return str(value)


def _read(path: str) -> dict[str, Any]:
    """Return the table in a file, which is not a large one."""
    import tomllib

    try:
        data = read_regular(path, _MAX_BYTES, streams=True)
    except OSError as failure:
        raise SfsampleError(
            f"cannot read: {path}: {failure.strerror}", "--config names a TOML file"
        ) from None
    if data.count(b".") > _MAX_DOTS:
        raise UsageError(f"{path}: more than {_MAX_DOTS} dots", _HELP)
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as failure:  # a mere ValueError is that of int()
        why = "a number that is too long" if type(failure) is ValueError else failure
        raise UsageError(f"{path}: not TOML: {why}", _HELP) from None


def execute_anew(why: str) -> None:
    """Execute the command line of this process again, in its place; return where it has a mistake now."""
    from sfsample.cli.parse import parse

    try:
        parse(sys.argv[1:])
    except SfsampleError as failure:
        say_at(f"not reloaded: {failure}", *failure.help, "the watch goes on as before")
        return
    say_at(why)
    for number in (signal.SIGHUP, signal.SIGUSR1):  # the program that begins is not ready for them
        signal.signal(number, signal.SIG_IGN)
    program = own_program(*sys.argv[1:])
    os.execv(program[0], program)  # noqa: S606 - no shell is needed
