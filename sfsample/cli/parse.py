"""From the words of the command line to arguments.

Law: what goes together is checked here, so that a command starts with arguments that make sense; a mistake is
one line, what to do, and exit code 2.
"""

import argparse
import os
import sys

from sfsample import __version__
from sfsample.cli.flags import COMMANDS, GROUPS
from sfsample.cli.values import format_of
from sfsample.errors import UsageError

TYPE_CHECKING = False  # `typing` costs 3 ms, a tenth of what --help may take
if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import SupportsWrite


ABOUT = "Stack sampler for live Linux processes; unwinds with SFrame."
_FOOT = """\
`sfsample -p PID` is short for `sfsample record -p PID`; `sfsample COMMAND --help` lists a command's flags.
exit codes: 0 done, 1 failed, 2 usage, 3 no such process, 4 not permitted, 5 dump shows some threads only
"""
_OF_NAMES = ("raw_names", "simplify_names", "merge_clones", "lines", "inlines", "debuginfod", "debug_dir")
_NO_TARGET = ("convert", "diff", "replay", "completion", "man")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Knows the width, for which argparse would import shutil (and with it every compressor)."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_columns(), 110) - 2)


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(1).columns or 80
    except (ValueError, OSError):
        return 80


class _Parser(argparse.ArgumentParser):
    """No abbreviations: a script that says --dur would break when a second flag begins like that."""

    def __init__(self, prog: str, description: str | None = None, epilog: str | None = None) -> None:
        super().__init__(
            prog, description=description, epilog=epilog, formatter_class=_Help, allow_abbrev=False
        )

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Write help; argparse would swallow that it could not."""
        stream = file or sys.stderr
        if message and stream is not None:
            stream.write(message)

    def error(self, message: str) -> "NoReturn":
        raise UsageError(message.removeprefix("argument "), f"try: {self.prog} --help")


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; `command` is one of COMMANDS, `program` the words after `--`."""
    own, program = argv, None
    if "--" in argv:
        at = argv.index("--")
        own, program = argv[:at], argv[at + 1 :]
    if not own and not program:
        raise UsageError("nothing to do: no process given", "try: sfsample -p PID, or sfsample --help")
    if not own or (own[0].startswith("-") and own[0] not in ("-h", "--help", "--version")):
        own = ["record", *own]
    parser = _parser(own[0])
    if not own[0].startswith("-") and own[0] not in COMMANDS:
        raise UsageError(f"unknown command: {own[0]}", f"commands: {', '.join(COMMANDS)}",
                         "to start a program: sfsample -- PROGRAM")  # fmt: skip
    arguments, unknown = parser.parse_known_args(own)
    if unknown:
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}",
                         f"try: sfsample {arguments.command} --help")  # fmt: skip
    arguments.program = program
    _check(arguments)
    if getattr(arguments, "format", "") is None:
        asked = format_of(arguments.output)
        of_diff = asked if asked in ("html", "json") else "text"
        arguments.format = of_diff if arguments.command == "diff" else asked
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    if arguments.command == "convert":
        _check_names(arguments)
    if arguments.command in _NO_TARGET:
        return
    ways = {"-p PID": arguments.pid, "-n NAME": arguments.name}
    if arguments.command == "record":
        ways["-- COMMAND"] = arguments.program
    elif arguments.command == "inspect":
        ways["ELF"] = arguments.elf
    elif arguments.command == "dump":
        ways["--core CORE"] = arguments.core
    elif arguments.command == "watch":
        ways["--unit UNIT"] = arguments.unit
    given = [way is not None for way in ways.values()]
    if arguments.program is not None and (arguments.command != "record" or not arguments.program):
        raise UsageError("-- COMMAND is for record, and needs a command", "try: sfsample -- PROGRAM ARG")
    if sum(given) != 1 and (any(given) or arguments.command != "doctor"):
        what = "no process given" if not sum(given) else "more than one way to name the target"
        raise UsageError(f"{what}: use one of {', '.join(ways)}")
    if arguments.all and arguments.name is None:
        raise UsageError("--all goes with -n: it takes every process of that name")
    if arguments.command == "dump" and arguments.exe is not None and arguments.core is None:
        raise UsageError("--exe goes with --core: it is the program that the core file is of")
    if arguments.command == "dump" and arguments.sysroot is not None and arguments.core is None:
        raise UsageError("--sysroot goes with --core: a live process's files lie where it sees them")
    if getattr(arguments, "perf_events", False):
        _check_events(arguments)
    if arguments.command == "watch":
        _check_schedule(arguments.every, arguments.slice)


def _check_events(arguments: argparse.Namespace) -> None:
    if arguments.mode == "wall":
        raise UsageError("--perf-events goes with --mode cpu: its timers stand still while a thread sleeps")
    if arguments.subprocesses:
        raise UsageError("--perf-events goes without -s: name the processes with -p")


def _check_names(arguments: argparse.Namespace) -> None:
    """Refuse what would change nothing: names in a file stay unless they are looked up again."""
    asked = [flag for flag in _OF_NAMES if getattr(arguments, flag)]
    if asked and not arguments.symbolize:
        raise UsageError(f"--{asked[0].replace('_', '-')} goes with --symbolize")


def _check_schedule(every: float, length: float) -> None:
    if every < 1:
        raise UsageError(
            "--every is shorter than a second", "slices are named after the second they begin in"
        )
    if every < length:
        raise UsageError("--every is shorter than --for", "slices must not overlap")


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser; only the command that is meant gets its flags, which takes a millisecond each."""
    parser = _Parser("sfsample", description=f"{ABOUT}\n\n{_overview()}", epilog=f"{_examples()}\n\n{_FOOT}")
    parser.usage = "sfsample COMMAND [options]\n       sfsample -p PID [options]"
    parser.add_argument("--version", action="version", version=f"sfsample {__version__}")
    commands = parser.add_subparsers(prog="sfsample", dest="command", metavar="COMMAND",
                                     parser_class=_Parser, help=argparse.SUPPRESS)  # fmt: skip
    for _, group in GROUPS:
        for name, fill, what, examples in group:
            if name == command:
                shown = "".join(f"  sfsample {words}\n" for words, _ in examples)
                fill(commands.add_parser(name, description=_sentence(what),
                                         epilog=f"examples:\n{shown}" if shown else None))  # fmt: skip
            else:
                commands.add_parser(name)
    return parser


class Flag:
    """A flag or a word of a command, as it is described; `names` is empty for a word.

    `value` stands for what it takes, and is empty when it takes nothing.
    """

    def __init__(self, action: argparse.Action) -> None:
        self.names = tuple(action.option_strings)
        self.choices = tuple(map(str, action.choices or ()))
        name = str(action.metavar or "|".join(self.choices) or action.dest.upper())
        self.value = "" if action.nargs == 0 else name
        self.help = action.help or ""


def described(command: str) -> tuple[str, list[Flag]]:
    """Return how a command is used, and its flags and words: what man page and completion are made from."""
    for action in _parser(command)._actions:  # noqa: SLF001 - argparse shows its parts nowhere else
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            parser = action.choices[command]
            return parser.format_usage(), [Flag(action) for action in parser._actions]  # noqa: SLF001
    raise LookupError(command)


def _sentence(what: str) -> str:
    return what[0].upper() + what[1:] + "."


def _overview() -> str:
    lines = []
    for title, group in GROUPS:
        lines.append(f"{title}:")
        lines += [f"  {name:<11} {what}" for name, _, what, _ in group]
    return "\n".join(lines)


def _examples() -> str:
    lines = ["examples:"]
    for _, group in GROUPS:
        for *_, examples in group:
            lines += [f"  sfsample {words:<33}  {what}".rstrip() for words, what in examples]
    return "\n".join(lines)
