"""Suggests what to type instead of a wrong word of the command line."""

import shlex
from collections.abc import Iterable, Mapping, Sequence

from sfsample.cli.commands import COMMANDS
from sfsample.errors import UsageError
from sfsample.report.suffixes import OPENED, is_profile

_ALWAYS_ON = ("-g", "--call-graph")  # flags of perf


def unknown_command(command: str, words: Sequence[str]) -> UsageError:
    """Return the error for a first word that is no command, no pid and no flag."""
    lines = [f"did you mean: sfsample {shlex.join([name, *words])}" for name in _similar(command, COMMANDS)]
    if not lines:
        lines += [] if "/" in command else [f"a process by its name: sfsample -n {shlex.quote(command)}"]
        lines.append(f"to start a program: sfsample -- {shlex.join([command, *words])}")
    return UsageError(f"unknown command: {command}", *lines, f"commands: {', '.join(COMMANDS)}")


def not_a_pid(command: str, word: str, what: object) -> UsageError:
    """Return the error for a word that should be a pid; `what` says what is wrong."""
    program = "sfsample" if command == "record" else f"sfsample {command}"
    if word in COMMANDS:
        help_line = f"the command comes first: sfsample {word} PID"
    elif word.lstrip("-").isdecimal():
        help_line = f"ps and pgrep show pids; by its name: {program} -n NAME"
    elif command == "record" and (is_profile(word) or word.endswith(OPENED)):
        help_line = f"to write this file: -o {shlex.quote(word)}"
    elif command == "record":
        help_line = f"to start a program: sfsample -- {shlex.quote(word)}"
    else:
        help_line = f"a process by its name: {program} -n {shlex.quote(word)}"
    return UsageError(str(what), help_line, try_help(f"sfsample {command}"))


def unknown_flags(command: str, words: Sequence[str], flags: Mapping[str, Iterable[str]]) -> UsageError:
    """Return the error for unknown words of a command; `flags` has the flags of each command."""
    lines = []
    for flag in (word.partition("=")[0] for word in words if word.startswith("-")):
        owners = [name for name, names in flags.items() if flag in names]
        if similar := [] if owners else _similar(flag, flags[command]):
            lines.append(f"did you mean: {similar[0]}")
        elif flag in _ALWAYS_ON:
            lines.append(f"{flag}: leave it out, as stacks are always recorded")
        elif owners:
            lines.append(f"{flag} is a flag of: {', '.join(f'sfsample {name}' for name in owners)}")
    return UsageError(f"unrecognized arguments: {' '.join(words)}", *lines, try_help(f"sfsample {command}"))


def try_help(program: str) -> str:
    """Return the last help line of a usage error."""
    return f"try: {program} --help"


def _similar(word: str, words: Iterable[str]) -> list[str]:
    """Return the word of `words` that is most similar, if any; not for short words, which have many."""
    from difflib import get_close_matches

    return get_close_matches(word, words, n=1, cutoff=0.75) if len(word) > 2 else []
