"""Flags, declared once.

Law: a flag means the same in every command that has it.  Values are checked here, so that a command starts
with values that make sense; a mistake is one line, what to do, and exit code 2.
"""

import argparse
import os
import re
import sys

from sfsample import __version__
from sfsample.cli import COMMANDS
from sfsample.errors import UsageError

TYPE_CHECKING = False  # `typing` costs 3 ms, a tenth of what --help may take
if TYPE_CHECKING:
    from typing import NoReturn

    from _typeshed import SupportsWrite

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_MAX_RATE = 10_000
_MAX_LOOKS = 1000
FORMATS = (
    "folded",
    "json",
    "speedscope",
    "firefox",
    "pprof",
    "html",
    "svg",
)  # output/formats.py has the writers
_SUFFIXES = {
    ".folded": "folded", ".collapsed": "folded", ".txt": "folded",
    ".speedscope.json": "speedscope", ".speedscope": "speedscope", ".firefox.json": "firefox",
    ".json": "json", ".pprof": "pprof", ".pb": "pprof", ".pb.gz": "pprof",
    ".html": "html",
    ".htm": "html",
    ".svg": "svg",
}  # fmt: skip
STEPPERS = ("sframe", "eh_frame", "frame_pointer", "scan")
_USUAL = STEPPERS[:-1]  # a scan is a guess that must be asked for

_EPILOG = """\
examples:
  sfsample -p 1234 -d 10 -o out.html         what does it do on the CPU, for ten seconds: a flame graph
  sfsample -p 1234 -d 10 > out.folded        the same as text, a line per stack
  sfsample -p 1234 -d 10 --mode wall -t      every thread, sleeping ones too
  sfsample -o out.folded -- ./program arg    start a program and record it to its end
  sfsample top -p 1234                       what does it do now
  sfsample dump -p 1234                      every thread's stack, once
  sfsample watch -n redis-server --every 60s --for 10s --output-dir /var/tmp/profiles --keep 1000
  sfsample convert out.json -o out.pprof     for another viewer
  sfsample diff before.json after.json       what grew, what shrank, what is noise
  sfsample inspect --verify ./libfoo.so      which unwind tables are there, and do they agree
  sfsample doctor -p 1234                    may sfsample attach, and if not, what to do

`sfsample -p PID` is short for `sfsample record -p PID`; `sfsample COMMAND --help` lists a command's flags.
exit codes: 0 done, 1 failed, 2 usage, 3 no such process, 4 not permitted, 5 dump shows some threads only
"""


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
    arguments = parser.parse_args(own)
    arguments.program = program
    _check(arguments)
    if getattr(arguments, "format", "") is None:
        asked = format_of(arguments.output)
        of_diff = asked if asked in ("html", "json") else "text"
        arguments.format = of_diff if arguments.command == "diff" else asked
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    if arguments.command in ("convert", "diff", "replay"):
        return
    ways = {"-p PID": arguments.pid, "-n NAME": arguments.name}
    if arguments.command == "record":
        ways["-- COMMAND"] = arguments.program
    elif arguments.command == "inspect":
        ways["ELF"] = arguments.elf
    elif arguments.command == "dump":
        ways["--core CORE"] = arguments.core
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
    if arguments.command == "watch":
        _check_schedule(arguments.every, arguments.slice)


def format_of(path: str) -> str:
    """Return the format that a file's name asks for; folded when it asks for none."""
    name = os.path.basename(path).lower()
    longest = max((suffix for suffix in _SUFFIXES if name.endswith(suffix)), key=len, default=None)
    if longest is None and name.endswith(".gz"):
        raise UsageError(f"no such format: {path}", f"choose with -f: {', '.join(FORMATS)}")
    return _SUFFIXES[longest] if longest else "folded"


def _check_schedule(every: float, length: float) -> None:
    if every < 1:
        raise UsageError(
            "--every is shorter than a second", "slices are named after the second they begin in"
        )
    if every < length:
        raise UsageError("--every is shorter than --for", "slices must not overlap")


def _parser(command: str) -> argparse.ArgumentParser:
    """Return the parser; only the command that is meant gets its flags, which takes a millisecond each."""
    parser = _Parser("sfsample", description="Stack sampler for live Linux processes; unwinds with SFrame.",
                     epilog=_EPILOG)  # fmt: skip
    parser.add_argument("--version", action="version", version=f"sfsample {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    for name, fill, what in (
        ("record", _record, "sample for a while, write a profile (the default)"),
        ("dump", _dump, "show every thread's stack once"),
        ("watch", _watch, "record a slice every so often, for months"),
        ("top", _top, "show live where the time goes"),
        ("inspect", _inspect, "show unwind tables: what they cover, whether they agree"),
        ("doctor", _doctor, "may sfsample attach, and if not, what to do"),
        ("convert", _convert, "change a profile's format; merge several; choose stacks"),
        ("diff", _diff, "show what changed between two profiles, and what is noise"),
        ("replay", _replay, "unwind a stack that was saved"),
    ):
        one = commands.add_parser(name, help=what)
        if name == command:
            fill(one)
    return parser


def _record(parser: argparse.ArgumentParser) -> None:
    _target(parser, launches=True)
    _sampling(parser)
    parser.add_argument("-d", "--duration", type=seconds, metavar="TIME",
                        help="seconds, or 500ms, 2m (default: until Ctrl-C or the target ends)")  # fmt: skip
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    parser.add_argument("-f", "--format", choices=FORMATS,
                        help="default: by the suffix of -o, else folded")  # fmt: skip
    parser.add_argument("--stats", metavar="FILE", help="write statistics as JSON; - is stderr")
    parser.add_argument(
        "--save-bad",
        metavar="DIR",
        help="keep each incomplete stack in a file, for `sfsample replay`; it holds stack memory",
    )
    _noise(parser)


def _dump(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    parser.add_argument("--looks", type=_looks, default=2, metavar="N",
                        help="look so many times, to tell who moves (default: 2)")  # fmt: skip
    parser.add_argument("--interval", type=seconds, default=0.05, metavar="TIME",
                        help="time between the looks (default: 50ms)")  # fmt: skip
    parser.add_argument("--core", metavar="CORE", help="a core file instead of a process")
    parser.add_argument("--exe", metavar="FILE", help="with --core: the program, if it is not where it was")
    _walking(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    _noise(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _sampling(parser)
    parser.add_argument("--every", type=seconds, default=60.0, metavar="TIME", help="default: 60s")
    parser.add_argument("--for", type=seconds, default=10.0, dest="slice", metavar="TIME",
                        help="length of a slice (default: 10s)")  # fmt: skip
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="one folded file per slice")
    parser.add_argument("--keep", type=positive, metavar="N", help="keep the newest N files, delete older")
    _noise(parser)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample inspect (ELF | -p PID | -n NAME) [options]"
    parser.add_argument("elf", nargs="?", metavar="ELF", help="a program or library")
    _target(parser)
    parser.add_argument("--rows", action="store_true", help="every function and row of SFrame")
    parser.add_argument("--verify", action="store_true", help="compare every SFrame row with .eh_frame")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    _noise(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample doctor [-p PID | -n NAME] [options]"
    _target(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")


def _top(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _rate_and_mode(parser)
    parser.add_argument("--window", type=seconds, default=5.0, metavar="TIME",
                        help="look at the last so many seconds (default: 5s)")  # fmt: skip
    _walking(parser)


def _convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="json (of sfsample), folded or pprof; - is stdin"
    )
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    parser.add_argument("-f", "--format", choices=FORMATS, help="default: by the suffix of -o, else folded")
    parser.add_argument("-t", "--threads", action="store_true", help="first frame is name/TID")
    parser.add_argument("--filter", action="append", metavar="REGEX",
                        help="only stacks with such a function or module; repeatable: and")  # fmt: skip
    parser.add_argument("--ignore", action="append", metavar="REGEX", help="no stacks with one; repeatable")
    parser.add_argument("--focus", metavar="REGEX", help="stacks from the outermost such frame inwards")
    parser.add_argument("--merge-by", choices=("function", "module", "address"),
                        help="frames that share it are one")  # fmt: skip
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample diff BEFORE AFTER [options]"
    parser.add_argument("inputs", nargs=2, metavar="BEFORE AFTER", help="json (of sfsample), folded or pprof")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    parser.add_argument("-f", "--format", choices=("text", "html", "json"),
                        help="default: by the suffix of -o, else text; html is a flame graph")  # fmt: skip
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="short for -f json")
    parser.add_argument("-v", "--verbose", action="store_true", help="every function that changed")


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample replay FILE [options]"
    parser.add_argument("file", metavar="FILE", help="a stack that `sfsample record --save-bad DIR` wrote")
    parser.add_argument("--sysroot", default="", metavar="DIR",
                        help="look for programs and libraries under DIR, not here")  # fmt: skip
    _walking(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")


def _target(parser: argparse.ArgumentParser, *, launches: bool = False) -> None:
    parser.add_argument(
        "-p", "--pid", type=_pids, action="extend", metavar="PID[,PID]", help="target process"
    )
    parser.add_argument(
        "-n", "--name", type=_name, help="target by process name, or by words of its command line"
    )
    parser.add_argument("--all", action="store_true", help="with -n: all that match, not an error")
    if launches:
        parser.usage = "sfsample [record] (-p PID | -n NAME | -- COMMAND [ARG ...]) [options]"


def _sampling(parser: argparse.ArgumentParser) -> None:
    _rate_and_mode(parser)
    parser.add_argument("-t", "--threads", action="store_true", help="first frame is name/TID")
    _walking(parser)


def _rate_and_mode(parser: argparse.ArgumentParser) -> None:
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("-r", "--rate", type=_rate, default=99.0, metavar="HZ", help="default: 99 per second")
    rate.add_argument("--interval", type=_interval, metavar="TIME", help="the same as a time: 10ms")
    parser.add_argument("--mode", choices=("cpu", "wall"), default="cpu",
                        help="cpu: threads that run (default); wall: all threads")  # fmt: skip


def _walking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unwind",
        type=_steppers,
        default=_USUAL,
        metavar="LIST",
        help=f"unwind with these, in order (default: {','.join(_USUAL)}; also: scan)",
    )
    parser.add_argument("--max-frames", type=positive, default=1024, metavar="N", help="default: 1024")
    parser.add_argument("--stack-bytes", type=_bytes, default=256 << 10, metavar="N",
                        help="copy at most this much stack per thread (default: 256K)")  # fmt: skip
    _naming(parser)


def _naming(parser: argparse.ArgumentParser) -> None:
    names = parser.add_argument_group("names")
    names.add_argument("--raw-names", action="store_true", help="mangled names, as symbol tables have them")
    names.add_argument("--simplify-names", action="store_true",
                       help="C++ without template arguments and parameter lists")  # fmt: skip
    names.add_argument("--merge-clones", action="store_true", help="f.cold, f.part.0, f.constprop.1 are f")
    names.add_argument(
        "--lines", action="store_true", help="file and line, from DWARF (extra: sfsample[lines])"
    )
    names.add_argument(
        "--inlines", action="store_true", help="inlined functions too, each ends in _[i] (same extra)"
    )
    names.add_argument("--debuginfod", action="store_true",
                       help="ask DEBUGINFOD_URLS for debug files; dump: only what is cached")  # fmt: skip
    names.add_argument("--debug-dir", action="append", metavar="DIR",
                       help="look for debug files here first; /usr/lib/debug always")  # fmt: skip


def _noise(parser: argparse.ArgumentParser) -> None:
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("-q", "--quiet", action="store_true", help="no summary")
    noise.add_argument("-v", "--verbose", action="store_true", help="name modules and all problems")


# -- values


_NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII)  # what scripts print; no nan, no 1_0


def seconds(text: str) -> float:
    """Parse a time: "10", "500ms", "2m"."""
    number = _NUMBER.match(text)
    scale = _UNITS.get(text[number.end() :] or "s") if number else None
    value = float(number[0]) * scale if number and scale else 0.0
    if not 0 < value < 1e9:
        raise _wrong(text, "a time (10, 500ms, 2m)")
    return value


def positive(text: str, *, what: str = "a positive number") -> int:
    """Parse a positive integer."""
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if not 0 < value < 1 << 31:
        raise _wrong(text, what)
    return value


def _bytes(text: str) -> int:
    scale = _SIZES.get(text[-1:].upper(), 1)
    size = positive(text if scale == 1 else text[:-1], what="a size (65536, 64K, 1M)") * scale
    if not 1 << 10 <= size <= 1 << 30:
        raise _wrong(text, "a size between 1K and 1G")
    return size


def _looks(text: str) -> int:
    looks = positive(text)
    if looks > _MAX_LOOKS:
        raise _wrong(text, f"a number of looks up to {_MAX_LOOKS}")
    return looks


def _rate(text: str) -> float:
    rate = float(text) if _NUMBER.fullmatch(text) else 0.0
    if not 0 < rate <= _MAX_RATE:
        raise _wrong(text, f"a rate between 0 and {_MAX_RATE} per second")
    return rate


def _interval(text: str) -> float:
    interval = seconds(text)
    if interval * _MAX_RATE < 1 - 1e-9:
        raise _wrong(text, f"a time of at least {1e6 / _MAX_RATE:g}us")
    return interval


def _pids(text: str) -> list[int]:
    return [positive(part, what="a process id") for part in text.split(",")]


def _name(text: str) -> str:
    if not text.strip():
        raise _wrong(text, "a name")
    return text


def _steppers(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    if not set(chosen) <= set(STEPPERS) or len(set(chosen)) != len(chosen):
        raise _wrong(text, f"a list out of {','.join(STEPPERS)}")
    return chosen


def _wrong(text: str, what: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"not {what}: {text[:100] or repr('')}")
