"""Flags, declared once.

Law: a flag means the same in every command that has it.  Values are checked here, so that a command starts
with values that make sense; a mistake is one line, what to do, and exit code 2.
"""

import argparse
from typing import NoReturn

from sfsample.cli import COMMANDS
from sfsample.errors import UsageError

VERSION = "0.1.0"

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
STEPPERS = ("sframe", "eh_frame", "frame_pointer")

_EPILOG = """\
examples:
  sfsample -p 1234 -d 10 > out.folded        what does it do on the CPU, for ten seconds
  sfsample -p 1234 -d 10 --mode wall -t      every thread, sleeping ones too
  sfsample -o out.folded -- ./program arg    start a program and record it to its end
  sfsample dump -p 1234                      every thread's stack, once
  sfsample watch -n redis-server --every 60s --for 10s --output-dir /var/tmp/profiles --keep 1000

`sfsample -p PID` is short for `sfsample record -p PID`; `sfsample COMMAND --help` lists a command's flags.
exit codes: 0 done, 1 failed, 2 usage, 3 no such process, 4 not permitted, 5 dump shows some threads only
"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message, f"try: {self.prog} --help")


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
    parser = _parser()
    if not own[0].startswith("-") and own[0] not in COMMANDS:
        raise UsageError(f"unknown command: {own[0]}", f"commands: {', '.join(COMMANDS)}",
                         "to start a program: sfsample -- PROGRAM")  # fmt: skip
    arguments = parser.parse_args(own)
    arguments.program = program
    _check(arguments)
    return arguments


def _check(arguments: argparse.Namespace) -> None:
    given = [bool(arguments.pid), bool(arguments.name), arguments.program is not None]
    if arguments.program is not None and (arguments.command != "record" or not arguments.program):
        raise UsageError("-- COMMAND is for record, and needs a command", "try: sfsample -- PROGRAM ARG")
    if sum(given) != 1:
        what = "no process given" if not sum(given) else "more than one way to name the target"
        raise UsageError(f"{what}: use one of -p PID, -n NAME, -- COMMAND")
    if arguments.command == "watch" and arguments.every < arguments.slice:
        raise UsageError("--every is shorter than --for", "slices must not overlap")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("sfsample", description="Stack sampler for live Linux processes; unwinds with SFrame.",
                     epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--version", action="version", version=f"sfsample {VERSION}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=_Parser)
    _record(commands.add_parser("record", help="sample for a while, write folded stacks (the default)"))
    _dump(commands.add_parser("dump", help="show every thread's stack once"))
    _watch(commands.add_parser("watch", help="record a slice every so often, for months"))
    return parser


def _record(parser: argparse.ArgumentParser) -> None:
    _target(parser, launches=True)
    _sampling(parser)
    parser.add_argument("-d", "--duration", type=seconds, metavar="TIME",
                        help="seconds, or 500ms, 2m (default: until Ctrl-C or the target ends)")  # fmt: skip
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    parser.add_argument("-f", "--format", choices=("folded",), default="folded", help="default: folded")
    parser.add_argument("--stats", metavar="FILE", help="write statistics as JSON; - is stderr")
    _noise(parser)


def _dump(parser: argparse.ArgumentParser) -> None:
    _target(parser)
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


def _target(parser: argparse.ArgumentParser, *, launches: bool = False) -> None:
    parser.add_argument(
        "-p", "--pid", type=_pids, action="extend", metavar="PID[,PID]", help="target process"
    )
    parser.add_argument("-n", "--name", help="target by process name, or by words of its command line")
    parser.add_argument("--all", action="store_true", help="with -n: all that match, not an error")
    if launches:
        parser.usage = "sfsample [record] (-p PID | -n NAME | -- COMMAND [ARG ...]) [options]"


def _sampling(parser: argparse.ArgumentParser) -> None:
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("-r", "--rate", type=_rate, default=99.0, metavar="HZ", help="default: 99 per second")
    rate.add_argument("--interval", type=seconds, metavar="TIME", help="the same as a time: 10ms")
    parser.add_argument("--mode", choices=("cpu", "wall"), default="cpu",
                        help="cpu: threads that run (default); wall: all threads")  # fmt: skip
    parser.add_argument("-t", "--threads", action="store_true", help="first frame is name/TID")
    _walking(parser)


def _walking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unwind", type=_steppers, default=STEPPERS, metavar="LIST",
                        help=f"unwind with these, in order (default: {','.join(STEPPERS)})")  # fmt: skip
    parser.add_argument("--max-frames", type=positive, default=1024, metavar="N", help="default: 1024")
    parser.add_argument("--stack-bytes", type=_bytes, default=256 << 10, metavar="N",
                        help="copy at most this much stack per thread (default: 256K)")  # fmt: skip


def _noise(parser: argparse.ArgumentParser) -> None:
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("-q", "--quiet", action="store_true", help="no summary")
    noise.add_argument("-v", "--verbose", action="store_true", help="name modules and all problems")


# -- values


def seconds(text: str) -> float:
    """Parse a time: "10", "500ms", "2m"."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(digits) :] or "s"
    try:
        value = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"not a time: {text} (10, 500ms, 2m)")
    return value


def positive(text: str) -> int:
    """Parse a positive integer."""
    if not text.isdecimal() or not 0 < int(text) < 1 << 31:
        raise argparse.ArgumentTypeError(f"not a positive number: {text}")
    return int(text)


def _bytes(text: str) -> int:
    scale = _SIZES.get(text[-1:].upper(), 1)
    size = positive(text if scale == 1 else text[:-1]) * scale
    if not 1 << 10 <= size <= 1 << 30:
        raise argparse.ArgumentTypeError(f"not between 1K and 1G: {text}")
    return size


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate <= 10_000:
        raise argparse.ArgumentTypeError(f"not a rate between 0 and 10000 per second: {text}")
    return rate


def _pids(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


def _steppers(text: str) -> tuple[str, ...]:
    chosen = tuple(text.split(","))
    wrong = [name for name in chosen if name not in STEPPERS]
    if wrong or len(set(chosen)) != len(chosen):
        raise argparse.ArgumentTypeError(f"not a list out of {','.join(STEPPERS)}: {text}")
    return chosen
