"""Parses the command line, and checks combinations of flags; raises UsageError (exit code 2)."""

import argparse
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from sfsample import __version__
from sfsample.cli import values
from sfsample.cli.commands import COMMANDS, ENTRIES, GROUPS
from sfsample.cli.history_flags import HISTORY_ACTIONS
from sfsample.cli.options import Command
from sfsample.core import quantities
from sfsample.core.quantities import BadValue
from sfsample.errors import UsageError
from sfsample.report.suffixes import OPENED, format_of

ABOUT = "Stack sampler for live Linux processes; unwinds with SFrame."
_FOOTER = """\
`sfsample PID` is short for `sfsample record -p PID`; `sfsample COMMAND --help` explains a command's flags.
exit codes: 0 done, 1 failed, 2 usage, 3 no such process, 4 not permitted, 5 dump is incomplete, 6 --fail-on
"""
_MAX_HELP_COLUMNS = 110
_NUMBER = re.compile(r"-[\d.]")
_PIDS = re.compile(r"\d[\d,]*", re.ASCII)
_GROUPS = {f"--{way}": way for way in ("cgroup", "container", "pod", "user", "busiest")}
_OWN_WAYS = {  # ways to name the target, besides -p and -n
    "record": {"-- COMMAND": "program", **_GROUPS},
    "inspect": {"ELF": "elf"},
    "dump": {"--core CORE": "core", **_GROUPS},
    "watch": {"--unit UNIT": "unit", **_GROUPS},
    "top": _GROUPS,
}
# placeholders of values in a help text, by the function that parses the value; see also `metavar`
_PLACEHOLDERS: dict[object, str] = {
    quantities.seconds: "TIME", quantities.large_size: "SIZE", values.age: "TIME", values.dump_samples: "N",
    values.growth: "PERCENT", values.label: "KEY=VALUE", values.percent: "PERCENT", values.positive: "N",
    values.rate: "HZ", values.since: "TIME", values.when: "WHEN",
}  # fmt: skip
# functions that spell a default in a help text, by the function that parses the value (else `str`)
_SHOWN: dict[object, Callable[[Any], str]] = {
    quantities.seconds: quantities.spelled_seconds, values.age: quantities.spelled_seconds,
    quantities.large_size: quantities.spelled_size, values.size: quantities.spelled_size,
    values.rate: "{:g}".format, values.percent: lambda share: f"{100 * share:g}",
    values.steppers: ",".join,
}  # fmt: skip
_T = TypeVar("_T")


class _Parser(argparse.ArgumentParser):
    """Allows no abbreviations: a script with --dur would break when a second flag begins with --dur."""

    def __init__(self, prog: str, description: str | None = None, epilog: str | None = None) -> None:
        width = min(shutil.get_terminal_size().columns, _MAX_HELP_COLUMNS) - 2
        formatter = partial(argparse.RawDescriptionHelpFormatter, width=width)
        super().__init__(prog, description=description, epilog=epilog, formatter_class=formatter,
                         allow_abbrev=False)  # fmt: skip
        self._negative_number_matcher = _NUMBER  # argparse would take -2h for a flag

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002 - argparse's
        """Write help; argparse would ignore a failed write."""
        from sfsample.cli.output_file import Output  # imported only for help

        Output("-").write(message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is not in `choices`, with one message in all Python versions."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"not one of {', '.join(action.choices)}: {value}")

    def _get_value(self, action: argparse.Action, text: str) -> object:
        """Parse a value; argparse would not print the reason of a refusal."""
        try:
            return action.type(text) if callable(action.type) else text
        except ValueError as refusal:
            raise argparse.ArgumentError(action, str(refusal)) from None

    def error(self, message: str) -> NoReturn:
        lines = [" ".join(self.format_usage().split())] if "required" in message else []
        if "not a process id" in message:
            lines.append(f"a process by its name: {self.prog} -n NAME")
        if message.startswith("unrecognized"):
            flags = self._option_string_actions
            words = (word.partition("=")[0] for word in message.split() if word.startswith("-"))
            lines += [f"did you mean: {name}" for word in words for name in _similar(word, flags)]
        raise UsageError(message.removeprefix("argument "), *lines, f"try: {self.prog} --help")


def parse(argv: list[str]) -> Command:
    """Return the value of the command that the words describe."""
    line, program = argv, None
    if "--" in argv:
        at = argv.index("--")
        line, program = argv[:at], argv[at + 1 :]
    if not line and not program:
        raise UsageError("nothing to do: no process given", "try: sfsample PID, or sfsample --help")
    if line and line[0] == "help":  # `sfsample help record`
        line = [*line[1:], "--help"]
    if line and line[0] in ("-h", "--help", "--version"):
        _main_parser().parse_args(line[:1])  # prints, and raises SystemExit
    if not line or line[0].startswith("-") or _PIDS.fullmatch(line[0]):
        line = ["record", *line]
    command, *words = line
    if command == "history":
        if "--utc" in words:  # before times are parsed
            from sfsample.core.local_time import use_utc  # most commands name no time

            use_utc()
        command, words = _history_action(words)
    if command not in ENTRIES or " " in line[0]:
        raise _unknown_command(command, words)
    parser = _command_parser(command)
    arguments, unknown = parser.parse_known_args(words)
    config = arguments.config if command == "watch" else None
    try:
        if config is not None:
            from sfsample.cli.config import words_of

            arguments, unknown = parser.parse_known_args([*words_of(config, describe(command)), *words])
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        formats = [flag.choices for flag in map(FlagHelp, parser._actions) if "--format" in flag.names]  # noqa: SLF001
        return _command(command, vars(arguments), program, *formats)
    except UsageError as mistake:
        if config is None:
            raise
        raise UsageError(f"with {config}: {mistake}", *mistake.help) from None


def _command(
    command: str, arguments: dict[str, Any], program: list[str] | None, formats: tuple[str, ...] = ()
) -> Command:
    """Return the value of a command.  `arguments`: values by `dest`; `formats`: choices of --format."""
    for word in arguments.pop("pids", ()):
        try:
            arguments["pid"] = [*arguments["pid"], *values.pids(word)]
        except BadValue as refusal:
            raise _not_a_pid(command, word, refusal) from None
    if program is not None and (command != "record" or not program):
        raise UsageError("-- COMMAND is for record, and needs a command", "try: sfsample -- PROGRAM ARG")
    if "pid" in arguments:
        _check_target(command, arguments, program)
    if "backends" in arguments:
        arguments["backends"] = [*dict.fromkeys(arguments["backends"])]
    if command == "record":
        arguments["program"] = program
    if arguments.get("format") == "":
        arguments["format"] = format_of(arguments["path"], formats)
    if arguments.get("open") and (arguments["path"] == "-" or arguments["format"] not in OPENED):
        raise UsageError("--open needs a file that a browser shows: -o FILE.html or -o FILE.svg")
    try:
        return _build(ENTRIES[command].kind, arguments)
    except ValueError as mistake:
        raise UsageError(str(mistake)) from None


def _build(kind: type[_T], arguments: Mapping[str, Any]) -> _T:
    """Return an instance of `kind`.  `arguments`: values by name of field, also of nested dataclasses."""
    built: dict[str, Any] = {}
    for field in fields(kind):  # type: ignore[arg-type]  # a dataclass
        if is_dataclass(field.type):
            built[field.name] = _build(field.type, arguments)  # type: ignore[arg-type]
        else:
            value = arguments[field.name]
            built[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**built)


def _unknown_command(command: str, words: Sequence[str]) -> UsageError:
    lines = [f"did you mean: sfsample {shlex.join([name, *words])}" for name in _similar(command, COMMANDS)]
    if not lines:
        lines += [] if "/" in command else [f"a process by its name: sfsample -n {shlex.quote(command)}"]
        lines.append(f"to start a program: sfsample -- {shlex.join([command, *words])}")
    return UsageError(f"unknown command: {command}", *lines, f"commands: {', '.join(COMMANDS)}")


def _not_a_pid(command: str, word: str, what: object) -> UsageError:
    """Return the error for a word that should be a pid; `what`: the reason."""
    program = "sfsample" if command == "record" else f"sfsample {command}"
    if word in COMMANDS:
        help_line = f"the command comes first: sfsample {word} PID"
    elif word.lstrip("-").isdecimal():
        help_line = f"ps and pgrep show pids; by its name: {program} -n NAME"
    elif command == "record":
        help_line = f"to start a program: sfsample -- {shlex.quote(word)}"
    else:
        help_line = f"a process by its name: {program} -n {shlex.quote(word)}"
    return UsageError(str(what), help_line, f"try: sfsample {command} --help")


def _similar(word: str, words: Iterable[str]) -> list[str]:
    """Return the most similar word as a list, or an empty list if `word` is short or no word is similar."""
    from difflib import get_close_matches

    return get_close_matches(word, words, n=1, cutoff=0.75) if len(word) > 2 else []


def _history_action(words: list[str]) -> tuple[str, list[str]]:
    """Return the key of an action in `ENTRIES` ("history list"), and the words after the action."""
    if words and words[0] in HISTORY_ACTIONS:
        return f"history {words[0]}", words[1:]
    if "--help" in words or "-h" in words:
        _command_parser("history").parse_args(["--help"])  # raises SystemExit
    raise UsageError("history needs an action, as its first word", f"actions: {', '.join(HISTORY_ACTIONS)}")


def _check_target(command: str, arguments: Mapping[str, Any], program: list[str] | None) -> None:
    ways = {"PID": "pid", "-n NAME": "name", **_OWN_WAYS.get(command, {})}
    named = {**arguments, "program": program}
    number = sum(named[way] not in (None, []) for way in ways.values())
    if number != 1 and (number or command != "doctor"):
        what = "more than one way to name the target" if number else "no process given"
        first, *_ = ENTRIES[command].examples
        raise UsageError(f"{what}: use one of {', '.join(ways)}", f"for example: sfsample {first[0]}")
    if arguments["all"] and arguments["name"] is None:
        raise UsageError("--all needs -n: --all selects every process that matches the name")


def _main_parser() -> argparse.ArgumentParser:
    commands, examples = [ABOUT, ""], ["examples:"]
    for title, entries in GROUPS:
        commands += [f"{title}:", *(f"  {entry.name:<11} {entry.summary}" for entry in entries)]
        examples += ["  sfsample {:<33}  {}".format(*entry.examples[0]) for entry in entries]
    parser = _Parser("sfsample", "\n".join(commands), "\n".join([*examples, "", _FOOTER]))
    parser.usage = "sfsample COMMAND [options]\n       sfsample PID [options]"
    parser.add_argument("--version", action="version", version=f"sfsample {__version__}")
    return parser


def _command_parser(command: str) -> argparse.ArgumentParser:
    entry = ENTRIES[command]
    lines = [f"{entry.summary[0].upper()}{entry.summary[1:]}.", "", "examples:"]
    lines += [f"  sfsample {words:<32}  {caption}".rstrip() for words, caption in entry.examples]
    if actions := [action for name, action in ENTRIES.items() if name.startswith(f"{command} ")]:
        lines += ["", f"actions (sfsample {command} ACTION --help explains one):"]
        lines += [f"  {action.name.partition(' ')[2]:<11} {action.summary}" for action in actions]
    parser = _Parser(f"sfsample {command}", "\n".join([*lines, ""]))
    entry.add_flags(parser)
    by_name = defaults(entry.kind)
    parser.set_defaults(**{name: [*v] if isinstance(v, tuple) else v for name, v in by_name.items()})
    for flag in parser._actions:  # noqa: SLF001 - argparse has no public way to list flags
        flag.metavar = flag.metavar or _PLACEHOLDERS.get(flag.type)
        if "{default}" in (flag.help or ""):
            shown = _SHOWN.get(flag.type, str)(by_name[flag.dest])
            flag.help = str(flag.help).replace("{default}", f" (default: {shown})")
    return parser


def defaults(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return the default of each field by name, also of fields of nested dataclasses."""
    result: dict[str, Any] = {}
    for field in fields(value):
        content = getattr(value, field.name)
        result |= defaults(content) if is_dataclass(content) else {field.name: content}
    return result


class FlagHelp:
    """A flag of a command, or a positional argument."""

    def __init__(self, action: argparse.Action) -> None:
        self.names = tuple(action.option_strings)  # empty for a positional argument
        self.choices = tuple(map(str, action.choices or ()))
        placeholder = str(action.metavar or "|".join(self.choices) or action.dest.upper())
        self.value = "" if action.nargs == 0 else placeholder  # "" if the flag takes no value
        self.help = action.help or ""


def describe(command: str) -> list[FlagHelp]:
    """Return the flags of a command."""
    actions = _command_parser(command)._actions  # noqa: SLF001 - argparse has no public way to list flags
    return [FlagHelp(action) for action in actions]
