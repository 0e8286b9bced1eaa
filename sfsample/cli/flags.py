"""The commands, grouped by task, and the flags of each.

Law: the one description of the command line: help, man page and completion are made from it.  What several
commands have is in shared_flags.py.
"""

import argparse

from sfsample.cli import shared_flags as shared
from sfsample.cli import values


def _record(parser: argparse.ArgumentParser) -> None:
    shared.target(parser, launches=True)
    shared.sampling(parser)
    parser.add_argument("-d", "--duration", type=values.seconds, metavar="TIME",
                        help="seconds, or 500ms, 2m (default: until Ctrl-C or the target ends)")  # fmt: skip
    shared.output(parser)
    parser.add_argument("-f", "--format", choices=values.FORMATS,
                        help="default: by the suffix of -o, else folded")  # fmt: skip
    parser.add_argument("--stats", metavar="FILE", help="write statistics as JSON; - is stderr")
    parser.add_argument(
        "--save-bad",
        metavar="DIR",
        help="keep each incomplete stack in a file, for `sfsample replay`; it holds stack memory",
    )
    shared.noise(parser)


def _dump(parser: argparse.ArgumentParser) -> None:
    shared.target(parser)
    parser.add_argument("--looks", type=values.looks, default=2, metavar="N",
                        help="look so many times, to tell who moves (default: 2)")  # fmt: skip
    parser.add_argument("--interval", type=values.seconds, default=0.05, metavar="TIME",
                        help="time between the looks (default: 50ms)")  # fmt: skip
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--no-stop", action="store_true", help="stop nothing: threads that run are not shown")
    when.add_argument(
        "--consistent",
        action="store_true",
        help="all threads at one instant: those that run are held until the last is captured",
    )
    parser.add_argument("--core", metavar="CORE", help="a core file instead of a process")
    parser.add_argument("--exe", metavar="FILE", help="with --core: the program, if it is not where it was")
    parser.add_argument("--sysroot", metavar="DIR",
                        help="with --core: look for programs and libraries under DIR, not here")  # fmt: skip
    shared.walking(parser)
    shared.json_output(parser)
    shared.noise(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    shared.target(parser)
    parser.add_argument("--unit", type=values.unit, metavar="UNIT", help="all processes of a systemd unit")
    shared.sampling(parser)
    parser.add_argument("--every", type=values.seconds, default=60.0, metavar="TIME", help="default: 60s")
    parser.add_argument("--for", type=values.seconds, default=10.0, dest="slice", metavar="TIME",
                        help="length of a slice (default: 10s)")  # fmt: skip
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="one file per slice")
    parser.add_argument("-f", "--format", choices=values.FORMATS, default="folded",
                        help="of each file (default: folded)")  # fmt: skip
    parser.add_argument(
        "--keep", type=values.positive, metavar="N", help="keep the newest N files, delete older"
    )
    shared.noise(parser)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample inspect (ELF | -p PID | -n NAME) [options]"
    parser.add_argument("elf", nargs="?", metavar="ELF", help="a program or library")
    shared.target(parser)
    parser.add_argument("--rows", action="store_true", help="every function and row of SFrame")
    parser.add_argument("--verify", action="store_true", help="compare every SFrame row with .eh_frame")
    shared.json_output(parser)
    shared.noise(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample doctor [-p PID | -n NAME] [options]"
    shared.target(parser)
    shared.json_output(parser)


def _top(parser: argparse.ArgumentParser) -> None:
    shared.target(parser)
    shared.rate_and_mode(parser)
    parser.add_argument("--window", type=values.seconds, default=5.0, metavar="TIME",
                        help="look at the last so many seconds (default: 5s)")  # fmt: skip
    shared.walking(parser)
    parser.set_defaults(quiet=True)  # the screen is ours


def _convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="json (of sfsample), folded or pprof; - is stdin"
    )
    shared.output(parser)
    parser.add_argument(
        "-f", "--format", choices=values.FORMATS, help="default: by the suffix of -o, else folded"
    )
    parser.add_argument("-t", "--threads", action="store_true", help="first frame is name/TID")
    parser.add_argument("--filter", action="append", metavar="REGEX",
                        help="only stacks with such a function or module; repeatable: and")  # fmt: skip
    parser.add_argument("--ignore", action="append", metavar="REGEX", help="no stacks with one; repeatable")
    parser.add_argument("--focus", metavar="REGEX", help="stacks from the outermost such frame inwards")
    parser.add_argument("--merge-by", choices=("function", "module", "address"),
                        help="frames that share it are one")  # fmt: skip
    parser.add_argument("--symbolize", action="store_true",
                        help="name by build-id what has no name yet (--debug-dir)")  # fmt: skip
    shared.naming(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample diff BEFORE AFTER [options]"
    parser.add_argument("inputs", nargs=2, metavar="BEFORE AFTER", help="json (of sfsample), folded or pprof")
    shared.output(parser)
    parser.add_argument("-f", "--format", choices=("text", "html", "json"),
                        help="default: by the suffix of -o, else text; html is a flame graph")  # fmt: skip
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="short for -f json")
    parser.add_argument("-v", "--verbose", action="store_true", help="every function that changed")


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample replay FILE [options]"
    parser.add_argument("file", metavar="FILE", help="a stack that `sfsample record --save-bad DIR` wrote")
    parser.add_argument("--sysroot", default="", metavar="DIR",
                        help="look for programs and libraries under DIR, not here")  # fmt: skip
    shared.unwinding(parser)
    shared.naming(parser)
    shared.json_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def _man(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: it has no flags."""


# -- the commands: name, flags, what it does, examples


GROUPS = (
    ("what a process does", (
        ("record", _record, "sample for a while, write a profile (the default)", (
            ("-p 1234 -d 10 -o out.html", "what does it do on the CPU, for ten seconds: a flame graph"),
            ("-p 1234 -d 10 > out.folded", "the same as text, a line per stack"),
            ("-p 1234 -d 10 --mode wall -t", "every thread, sleeping ones too"),
            ("-o out.json -- ./program arg", "start a program and record it to its end"),
        )),
        ("top", _top, "show live where the time goes", (("top -p 1234", "what does it do now"),)),
        ("dump", _dump, "what a process waits for, and every thread's stack", (
            ("dump -p 1234", "what does it hang on"),
        )),
        ("watch", _watch, "record a slice every so often, for months", (
            ("watch -n redis-server --every 60s --for 10s --output-dir /var/tmp/profiles --keep 1000", ""),
        )),
    )),
    ("profiles in files", (
        ("convert", _convert, "change a profile's format; merge several; choose stacks", (
            ("convert out.json -o out.pprof", "for another viewer"),
            ("convert a.json b.json -o ab.html", "several as one"),
            ("convert out.json --focus dictFind", "a part of it"),
            ("convert out.json --symbolize -o out.html", "names from this machine's files"),
        )),
        ("diff", _diff, "show what changed between two profiles, and what is noise", (
            ("diff before.json after.json", "what grew, what shrank, what is noise"),
            ("diff a.json b.json -o diff.html", "the same as a flame graph"),
        )),
    )),
    ("whether it can be trusted", (
        ("doctor", _doctor, "may sfsample attach, and if not, what to do", (
            ("doctor -p 1234", "may sfsample attach"),
        )),
        ("inspect", _inspect, "show unwind tables: what they cover, whether they agree", (
            ("inspect --verify ./libfoo.so", "which unwind tables are there, and do they agree"),
        )),
        ("replay", _replay, "unwind a stack that was saved", ()),
    )),
    ("sfsample itself", (
        ("completion", _completion, "print completion for a shell", (
            ("completion bash > ~/.sfsample.bash", "and source it; also for zsh and fish"),
        )),
        ("man", _man, "print the manual page", (("man | man -l -", "read it"),)),
    )),
)  # fmt: skip
COMMANDS = tuple(name for _, commands in GROUPS for name, *_ in commands)
