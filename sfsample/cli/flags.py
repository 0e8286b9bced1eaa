"""Declares the commands, grouped by task, and the flags of each.

Help, manual page and completion are all made from this description.
"""

import argparse

from sfsample.cli import shared_flags as shared
from sfsample.cli import values

_PROFILE = "json of sfsample, folded or pprof"


def _record(parser: argparse.ArgumentParser) -> None:
    shared.target(parser, launches=True)
    shared.sampling(parser)
    parser.add_argument("-d", "--duration", type=values.seconds, metavar="TIME",
                        help="record for TIME: 10, 500ms, 2m (default: until Ctrl-C or the end of the "
                        "target)")  # fmt: skip
    shared.output(parser)
    parser.add_argument("-f", "--format", choices=values.FORMATS,
                        help="format of the result (default: by the suffix of -o, else folded)")  # fmt: skip
    parser.add_argument("--stats", metavar="FILE", help="write statistics as JSON to FILE; - is stderr")
    parser.add_argument("--save-bad", metavar="DIR",
                        help="save incomplete stacks in DIR, for `sfsample replay`; the files contain "
                        "stack memory")  # fmt: skip
    shared.messages(parser)


def _dump(parser: argparse.ArgumentParser) -> None:
    shared.target(parser)
    parser.add_argument("--looks", type=values.dump_samples, default=2, metavar="N",
                        help="take N samples of each thread, to see which ones run (default: 2)")  # fmt: skip
    parser.add_argument("--interval", type=values.seconds, default=0.05, metavar="TIME",
                        help="time between these samples (default: 50ms)")  # fmt: skip
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--no-stop", action="store_true", help="stop no thread; running threads are not shown")
    when.add_argument("--consistent", action="store_true",
                      help="capture all threads at one instant; running threads stay stopped until the last "
                      "one is captured")  # fmt: skip
    parser.add_argument("--core", metavar="CORE", help="read a core file instead of a process")
    parser.add_argument("--exe", metavar="FILE", help="with --core: the program, if its path has changed")
    parser.add_argument("--sysroot", metavar="DIR",
                        help="with --core: search programs and libraries under DIR")  # fmt: skip
    shared.walking(parser)
    shared.json_output(parser)
    shared.messages(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    shared.target(parser)
    parser.add_argument("--unit", type=values.unit, metavar="UNIT",
                        help="select all processes of a systemd unit")  # fmt: skip
    shared.sampling(parser)
    parser.add_argument("--every", type=values.seconds, default=60.0, metavar="TIME",
                        help="start a slice every TIME (default: 60s)")  # fmt: skip
    parser.add_argument("--for", type=values.seconds, default=10.0, dest="slice", metavar="TIME",
                        help="length of a slice (default: 10s)")  # fmt: skip
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="write one file per slice to DIR")
    parser.add_argument("-f", "--format", choices=values.FORMATS, default="folded",
                        help="format of each file (default: folded)")  # fmt: skip
    parser.add_argument("--keep", type=values.positive, metavar="N",
                        help="keep the newest N files, delete older ones")  # fmt: skip
    shared.messages(parser)


def _inspect(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample inspect (ELF | -p PID | -n NAME) [options]"
    parser.add_argument("elf", nargs="?", metavar="ELF", help="a program, library or object file")
    shared.target(parser)
    parser.add_argument("--rows", action="store_true", help="show every function and row of SFrame")
    parser.add_argument("--verify", action="store_true", help="compare every SFrame row with .eh_frame")
    shared.json_output(parser)
    shared.messages(parser)


def _doctor(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample doctor [-p PID | -n NAME] [options]"
    shared.target(parser)
    shared.json_output(parser)


def _top(parser: argparse.ArgumentParser) -> None:
    shared.target(parser)
    shared.rate_and_mode(parser)
    parser.add_argument("--window", type=values.seconds, default=5.0, metavar="TIME",
                        help="show the samples of the last TIME (default: 5s)")  # fmt: skip
    shared.walking(parser)
    parser.set_defaults(quiet=True)  # messages would disturb the screen


def _convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=f"{_PROFILE}; - is stdin")
    shared.output(parser)
    parser.add_argument("-f", "--format", choices=values.FORMATS,
                        help="format of the result (default: by the suffix of -o, else folded)")  # fmt: skip
    parser.add_argument("-t", "--threads", action="store_true",
                        help="make name/TID the first frame: one root per thread")  # fmt: skip
    parser.add_argument("--filter", action="append", default=[], metavar="REGEX",
                        help="keep stacks with a matching function or module; repeatable, then all "
                        "must match")  # fmt: skip
    parser.add_argument("--ignore", action="append", default=[], metavar="REGEX",
                        help="drop stacks with a matching function or module; repeatable")  # fmt: skip
    parser.add_argument("--focus", metavar="REGEX",
                        help="keep of each stack the outermost matching frame and what it calls")  # fmt: skip
    parser.add_argument("--merge-by", choices=("function", "module", "address"),
                        help="merge frames that have the same function, module or address")  # fmt: skip
    parser.add_argument("--symbolize", action="store_true",
                        help="name frames that have no name, by build-id (--debug-dir)")  # fmt: skip
    shared.names(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def _diff(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample diff BEFORE AFTER [options]"
    parser.add_argument("inputs", nargs=2, metavar="BEFORE AFTER", help=_PROFILE)
    shared.output(parser)
    parser.add_argument("-f", "--format", choices=("text", "html", "json"),
                        help="format of the result; html is a flame graph "
                        "(default: by the suffix of -o, else text)")  # fmt: skip
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="short for -f json")
    parser.add_argument("-v", "--verbose", action="store_true", help="show every function that changed")


def _replay(parser: argparse.ArgumentParser) -> None:
    parser.usage = "sfsample replay FILE [options]"
    parser.add_argument("file", metavar="FILE", help="a stack that `sfsample record --save-bad DIR` saved")
    parser.add_argument("--sysroot", default="", metavar="DIR",
                        help="search programs and libraries under DIR")  # fmt: skip
    shared.unwinding(parser)
    shared.names(parser)
    shared.json_output(parser)
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to print it for")


def _man(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: it has no flags."""


# A group has a title and commands; a command has a name, flags, a summary, and examples with captions.
GROUPS = (
    ("sample processes", (
        ("record", _record, "sample processes for a while and write a profile (the default)", (
            ("-p 1234 -d 10 -o out.html", "CPU use in 10 s, as a flame graph"),
            ("-p 1234 -d 10 > out.folded", "the same as text, one line per stack"),
            ("-p 1234 -d 10 --mode wall -t", "all threads, sleeping ones too"),
            ("-o out.json -- ./program arg", "start a program and record it to its end"),
        )),
        ("top", _top, "show live which functions take the time", (
            ("top -p 1234", "what the process does now"),
        )),
        ("dump", _dump, "show every thread's stack, and what the process waits for", (
            ("dump -p 1234", "why the process hangs"),
        )),
        ("watch", _watch, "record a slice at regular intervals, for months", (
            ("watch -n redis-server --every 60s --for 10s --output-dir /var/tmp/profiles --keep 1000", ""),
        )),
    )),
    ("convert and compare profiles", (
        ("convert", _convert, "change the format of profiles, merge them, filter their stacks", (
            ("convert out.json -o out.pprof", "for another viewer"),
            ("convert a.json b.json -o ab.html", "several profiles merged into one"),
            ("convert out.json --focus dictFind", "only dictFind and what it calls"),
            ("convert out.json --symbolize -o out.html", "with names from files of this machine"),
        )),
        ("diff", _diff, "show what changed between two profiles, and what is noise", (
            ("diff before.json after.json", "what grew, what shrank, what is noise"),
            ("diff a.json b.json -o diff.html", "the same as a flame graph"),
        )),
    )),
    ("check permissions and unwind tables", (
        ("doctor", _doctor, "show whether sfsample may attach, and if not, what to do", (
            ("doctor -p 1234", "whether sfsample may attach to it"),
        )),
        ("inspect", _inspect, "show unwind tables: what they cover, whether they agree", (
            ("inspect --verify ./libfoo.so", "which unwind tables it has, and whether they agree"),
        )),
        ("replay", _replay, "unwind a saved stack again", ()),
    )),
    ("set up sfsample", (
        ("completion", _completion, "print the completion script for a shell", (
            ("completion bash > ~/.sfsample.bash", "then source the file; also for zsh and fish"),
        )),
        ("man", _man, "print the manual page", (("man | man -l -", "read the manual page"),)),
    )),
)  # fmt: skip
COMMANDS = tuple(name for _, commands in GROUPS for name, *_ in commands)
