"""Parses the command line, and checks which arguments go together, so that a command gets arguments that do.

A mistake is a UsageError: one line, what to do, and exit code 2.
"""

import argparse
import re
import shutil
from typing import NoReturn

from sfsample import __version__
from sfsample.cli.commands import COMMANDS, GROUPS
from sfsample.cli.mistakes import not_a_pid, try_help, unknown_command, unknown_flags
from sfsample.cli.values import FORMATS, OPENED, format_of, is_loopback, pids
from sfsample.core.python_view import PythonView
from sfsample.errors import UsageError

ABOUT = "Stack sampler for live Linux processes; unwinds with SFrame."
_FOOTER = """\
`sfsample PID` is short for `sfsample record -p PID`; `sfsample COMMAND --help` explains a command's flags.
exit codes: 0 done, 1 failed, 2 usage, 3 no such process, 4 not permitted, 5 dump is incomplete, 6 --fail-on
"""
_MAX_HELP_COLUMNS = 110
_PIDS = re.compile(r"\d[\d,]*", re.ASCII)
_NAME_FLAGS = ("raw_names", "simplify_names", "merge_clones", "inlines", "debuginfod", "debug_dir")
_HISTORY_FORMATS = {"list": ("text", "json"), "diff": ("text", "json", "html"), "show": ("text", "html"),
                    "export": FORMATS, "check": ("text",), "prune": ("text",), "push": ("text",)}  # fmt: skip
_GROUPS = {f"--{way}": way for way in ("cgroup", "container", "pod", "user", "busiest")}
_OWN_WAYS = {  # to name the target, beside -p and -n
    "record": {"-- COMMAND": "program", **_GROUPS},
    "inspect": {"ELF": "elf"},
    "dump": {"--core CORE": "core", **_GROUPS},
    "watch": {"--unit UNIT": "unit", **_GROUPS},
    "top": _GROUPS,
}


def _help_formatter(prog: str) -> argparse.HelpFormatter:
    """Keep lines short on a wide terminal."""
    columns = min(shutil.get_terminal_size().columns, _MAX_HELP_COLUMNS)
    return argparse.RawDescriptionHelpFormatter(prog, width=columns - 2)


class _Parser(argparse.ArgumentParser):
    """Allows no abbreviations: a script that says --dur would break when a second flag begins like that."""

    def __init__(self, prog: str, description: str | None = None, epilog: str | None = None) -> None:
        super().__init__(prog, description=description, epilog=epilog, formatter_class=_help_formatter,
                         allow_abbrev=False)  # fmt: skip

    def _print_message(self, message: str, file: object = None) -> None:  # noqa: ARG002 - of argparse
        """Write help; argparse would hide a failed write."""
        from sfsample.cli.output_file import Output  # most runs print no help

        Output("-").write(message)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Refuse a value that is no choice, in the same words whatever the version of Python."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(action, f"not one of {', '.join(action.choices)}: {value}")

    def error(self, message: str) -> NoReturn:
        lines = [" ".join(self.format_usage().split())] if "required" in message else []
        if "not a process id" in message:
            lines.append(f"a process by its name: {self.prog} -n NAME")
        raise UsageError(message.removeprefix("argument "), *lines, try_help(self.prog))


def parse(argv: list[str]) -> argparse.Namespace:
    """Return the arguments; `command` is one of COMMANDS, `program` the words after `--`, or None."""
    own, program = argv, None
    if "--" in argv:
        at = argv.index("--")
        own, program = argv[:at], argv[at + 1 :]
    if not own and not program:
        raise UsageError("nothing to do: no process given", "try: sfsample PID, or sfsample --help")
    if own and own[0] == "help":  # `sfsample help record`
        own = [*own[1:2], "--help"]
    if own and own[0] in ("-h", "--help", "--version"):
        _main_parser().parse_args(own[:1])  # prints, and raises SystemExit
    if not own or own[0].startswith("-") or _PIDS.fullmatch(own[0]):
        own = ["record", *own]
    command, *words = own
    if command == "history":
        words = _join_times(words)
    if command not in COMMANDS:
        raise unknown_command(command, words)
    words = _with_config(command, words)
    parser = _command_parser(command)
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        flags = {each: [name for flag in describe(each) for name in flag.names] for each in COMMANDS}
        raise unknown_flags(command, unknown, flags)
    arguments.command, arguments.program = command, program
    for word in getattr(arguments, "pids", ()):
        try:
            arguments.pid = [*(arguments.pid or ()), *pids(word)]
        except argparse.ArgumentTypeError as refusal:
            raise not_a_pid(command, word, refusal) from None
    _check(arguments)
    if hasattr(arguments, "format"):
        [formats] = [flag.choices for flag in map(FlagHelp, parser._actions) if "--format" in flag.names]  # noqa: SLF001
        formats = _HISTORY_FORMATS[arguments.action] if command == "history" else formats
        arguments.format = arguments.format or format_of(arguments.output, formats)
        if arguments.format not in formats:
            raise UsageError(f"history {arguments.action} has no format {arguments.format}",
                             f"it has: {', '.join(formats)}")  # fmt: skip
    if getattr(arguments, "open", False) and (arguments.output == "-" or arguments.format not in OPENED):
        raise UsageError("--open needs a file that a browser shows: -o FILE.html or -o FILE.svg")
    return arguments


def _with_config(command: str, words: list[str]) -> list[str]:
    """Return the words of a command with those of its --config before them."""
    if command != "watch":
        return words
    given = [at for at, word in enumerate(words) if word.partition("=")[0] == "--config"]
    if not given or words[-1] == "--config":  # without a value: argparse says so
        return words
    _, equals, path = words[given[-1]].partition("=")
    path = path if equals else words[given[-1] + 1]
    from sfsample.cli.config import words_of

    takes_value = {name: bool(flag.value) for flag in describe(command) for name in flag.names}
    own = words_of(path, {n: v for n, v in takes_value.items() if n.startswith("--")})
    try:
        _command_parser(command).parse_known_args(own)
    except UsageError as failure:
        raise UsageError(f"{path}: {failure}", *failure.help) from None
    return [*own, *words]


def _join_times(words: list[str]) -> list[str]:
    """Return the words with `--at -2h` as one, which argparse takes for a flag and another."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in ("--at", "--with", "--since") and re.match(r"-[\d.]", word):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _check_history(arguments: argparse.Namespace) -> None:
    action, has_time = arguments.action, arguments.at is not None or arguments.since is not None
    if arguments.length is not None and arguments.at is None and arguments.deploy is None:
        raise UsageError("--for needs --at: from when on", "for the last hour: --since 1h")
    if arguments.at is not None and arguments.since is not None:
        raise UsageError("--at and --since both say when: use one of them")
    if arguments.deploy is not None:
        if action != "diff" or any(
            each is not None for each in (arguments.at, arguments.other, arguments.since)
        ):
            raise UsageError("--deploy is for history diff, instead of --at and --with")
    elif (action == "diff") != (arguments.other is not None) or (action == "diff" and arguments.at is None):
        raise UsageError("history diff needs --at WHEN and --with WHEN; nothing else has --with",
                         "for example: sfsample history diff --at -2h --for 1h --with now",
                         "or before and after a new build: sfsample history diff --deploy")  # fmt: skip
    if action == "push" and (arguments.label or has_time):
        raise UsageError("history push takes --service only: it sends what was not sent yet")
    if (action == "push") != bool(arguments.push) or (arguments.follow and action != "push"):
        raise UsageError("history push needs --push KIND=URL; nothing else has --push or --follow",
                         "for example: sfsample history push --push parca=http://127.0.0.1:7070")  # fmt: skip
    if action == "prune" and (arguments.service or arguments.label or has_time):
        raise UsageError("history prune selects no slices: it deletes what is too old, or too much")


def _check(arguments: argparse.Namespace) -> None:
    command = arguments.command
    if hasattr(arguments, "push"):
        arguments.push = [*dict.fromkeys(arguments.push)]
        if arguments.push_auth_file is not None and not arguments.push:
            raise UsageError("--push-auth-file needs --push KIND=URL")
    if command == "convert" and not arguments.symbolize:  # names in a file stay as they are
        for flag in _NAME_FLAGS:
            if getattr(arguments, flag):
                raise UsageError(f"--{flag.replace('_', '-')} needs --symbolize")
    if command == "history":
        _check_history(arguments)
    if not hasattr(arguments, "pid"):  # it has no target
        return
    _check_target(arguments)
    if command == "dump" and arguments.locals and (arguments.core or arguments.python is PythonView.OFF):
        raise UsageError("--locals needs the Python frames of a live process",
                         "leave out --core and --python off")  # fmt: skip
    if command == "dump" and arguments.core is None:
        if arguments.exe is not None:
            raise UsageError("--exe needs --core: it is the program of the core file")
        if arguments.sysroot is not None:
            raise UsageError("--sysroot needs --core: files of a live process are found where it sees them")
    if getattr(arguments, "perf_events", False) and arguments.mode == "wall":
        raise UsageError("--perf-events needs --mode cpu: its timers do not run while a thread sleeps")
    if command == "watch":
        if arguments.no_history and (arguments.history or not arguments.output_dir):
            raise UsageError("--no-history needs --output-dir, and no --history: slices are kept somewhere")
        if arguments.no_history and arguments.push:
            raise UsageError("--push needs a history: what a backend does not take waits there",
                             "leave --no-history out")  # fmt: skip
        if arguments.every < 1:
            raise UsageError("--every is shorter than a second",
                             "the name of a slice is the second in which it begins")  # fmt: skip
        arguments.slice = arguments.slice or arguments.every
        if arguments.every < arguments.slice:
            raise UsageError("--every is shorter than --for", "slices must not overlap")
        _check_listen(arguments)


def _check_listen(arguments: argparse.Namespace) -> None:
    """Check that a client on another machine needs a token."""
    where, has_token = arguments.listen, arguments.listen_token_file is not None
    if where is None and (arguments.listen_host or has_token):
        raise UsageError("--listen-token-file and --listen-host need --listen")
    if not has_token and isinstance(where, tuple) and not is_loopback(where[0]):
        raise UsageError(f"--listen {where[0]} needs --listen-token-file FILE: other machines reach it",
                         "without a token: 127.0.0.1:PORT, or unix:PATH")  # fmt: skip


def _check_target(arguments: argparse.Namespace) -> None:
    """Check that the target is given in one way."""
    ways = {"PID": "pid", "-n NAME": "name", **_OWN_WAYS.get(arguments.command, {})}
    given = sum(getattr(arguments, way) is not None for way in ways.values())
    if arguments.program is not None and (arguments.command != "record" or not arguments.program):
        raise UsageError("-- COMMAND is for record, and needs a command", "try: sfsample -- PROGRAM ARG")
    if given != 1 and (given or arguments.command != "doctor"):
        what = "more than one way to name the target" if given else "no process given"
        first, *_ = COMMANDS[arguments.command][2]
        raise UsageError(f"{what}: use one of {', '.join(ways)}", f"for example: sfsample {first[0]}")
    if arguments.all and arguments.name is None:
        raise UsageError("--all needs -n: it selects every process that matches the name")


def _main_parser() -> argparse.ArgumentParser:
    parser = _Parser("sfsample", f"{ABOUT}\n\n{_overview()}", f"{_examples()}\n\n{_FOOTER}")
    parser.usage = "sfsample COMMAND [options]\n       sfsample PID [options]"
    parser.add_argument("--version", action="version", version=f"sfsample {__version__}")
    return parser


def _command_parser(command: str) -> argparse.ArgumentParser:
    add_flags, summary, examples = COMMANDS[command]
    lines = "".join(f"  sfsample {words:<32}  {caption}".rstrip() + "\n" for words, caption in examples)
    description = f"{summary[0].upper()}{summary[1:]}.\n\nexamples:\n{lines}"
    parser = _Parser(f"sfsample {command}", description)
    add_flags(parser)
    return parser


class FlagHelp:
    """A flag of a command, or a positional argument, whose `names` are empty.

    `value` is the placeholder of its value; it is empty when the flag takes none.
    """

    def __init__(self, action: argparse.Action) -> None:
        self.names = tuple(action.option_strings)
        self.choices = tuple(map(str, action.choices or ()))
        placeholder = str(action.metavar or "|".join(self.choices) or action.dest.upper())
        self.value = "" if action.nargs == 0 else placeholder
        self.help = action.help or ""


def describe(command: str) -> list[FlagHelp]:
    """Return the flags of a command."""
    actions = _command_parser(command)._actions  # noqa: SLF001 - argparse has no public way to list flags
    return [FlagHelp(action) for action in actions]


def _overview() -> str:
    lines = []
    for title, group in GROUPS:
        lines.append(f"{title}:")
        lines += [f"  {name:<11} {summary}" for name, _, summary, _ in group]
    return "\n".join(lines)


def _examples() -> str:
    lines = ["examples:"]
    for *_, examples in COMMANDS.values():
        lines += [f"  sfsample {words:<33}  {caption}".rstrip() for words, caption in examples]
    return "\n".join(lines)
