"""The commands, grouped by task, and the flags of each.

Law: the one description of the command line: help, man page and completion are made from it.  A flag means
the same in every command that has it, so those that several have are declared once.
"""

import argparse

from sfsample.cli import values


def _record(parser: argparse.ArgumentParser) -> None:
    _target(parser, launches=True)
    _sampling(parser)
    parser.add_argument("-d", "--duration", type=values.seconds, metavar="TIME",
                        help="seconds, or 500ms, 2m (default: until Ctrl-C or the target ends)")  # fmt: skip
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    parser.add_argument("-f", "--format", choices=values.FORMATS,
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
    _walking(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    _noise(parser)


def _watch(parser: argparse.ArgumentParser) -> None:
    _target(parser)
    _sampling(parser)
    parser.add_argument("--every", type=values.seconds, default=60.0, metavar="TIME", help="default: 60s")
    parser.add_argument("--for", type=values.seconds, default=10.0, dest="slice", metavar="TIME",
                        help="length of a slice (default: 10s)")  # fmt: skip
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="one file per slice")
    parser.add_argument("-f", "--format", choices=values.FORMATS, default="folded",
                        help="of each file (default: folded)")  # fmt: skip
    parser.add_argument(
        "--keep", type=values.positive, metavar="N", help="keep the newest N files, delete older"
    )
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
    parser.add_argument("--window", type=values.seconds, default=5.0, metavar="TIME",
                        help="look at the last so many seconds (default: 5s)")  # fmt: skip
    _walking(parser)
    parser.set_defaults(quiet=True)  # the screen is ours


def _convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "inputs", nargs="+", metavar="INPUT", help="json (of sfsample), folded or pprof; - is stdin"
    )
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
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
    _naming(parser)
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
    _unwinding(parser)
    _naming(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def _man(_parser: argparse.ArgumentParser) -> None:
    """Add nothing: it has no flags."""


def _target(parser: argparse.ArgumentParser, *, launches: bool = False) -> None:
    parser.add_argument(
        "-p", "--pid", type=values.pids, action="extend", metavar="PID[,PID]", help="target process"
    )
    parser.add_argument(
        "-n", "--name", type=values.name, help="target by process name, or by words of its command line"
    )
    parser.add_argument("--all", action="store_true", help="with -n: all that match, not an error")
    if launches:
        parser.usage = "sfsample [record] (-p PID | -n NAME | -- COMMAND [ARG ...]) [options]"


def _sampling(parser: argparse.ArgumentParser) -> None:
    _rate_and_mode(parser)
    parser.add_argument("-t", "--threads", action="store_true", help="first frame is name/TID")
    parser.add_argument("--no-stop", action="store_false", dest="stop",
                        help="stop nothing: threads that run are counted as not captured")  # fmt: skip
    parser.add_argument("--max-pause", type=values.seconds, default=0.005, metavar="TIME",
                        help="wait no longer for a thread to stop (default: 5ms)")  # fmt: skip
    parser.add_argument("--max-overhead", type=values.percent, metavar="PERCENT",
                        help="leave out ticks to cost less than this share of the time")  # fmt: skip
    _walking(parser)


def _rate_and_mode(parser: argparse.ArgumentParser) -> None:
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument(
        "-r", "--rate", type=values.rate, default=99.0, metavar="HZ", help="default: 99 per second"
    )
    rate.add_argument("--interval", type=values.interval, metavar="TIME", help="the same as a time: 10ms")
    parser.add_argument("--mode", choices=("cpu", "wall"), default="cpu",
                        help="cpu: threads that run (default); wall: all threads")  # fmt: skip
    parser.add_argument(
        "-s", "--subprocesses", action="store_true", help="descendants too, those born later included"
    )


def _walking(parser: argparse.ArgumentParser) -> None:
    _unwinding(parser)
    parser.add_argument("--stack-bytes", type=values.size, default=256 << 10, metavar="N",
                        help="copy at most this much stack per thread (default: 256K)")  # fmt: skip
    parser.add_argument("--kernel", action="store_true",
                        help="where sleeping threads (--mode wall) are in the kernel (root)")  # fmt: skip
    _naming(parser)


def _unwinding(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--unwind",
        type=values.steppers,
        default=values.USUAL_STEPPERS,
        metavar="LIST",
        help=f"unwind with these, in order (default: {','.join(values.USUAL_STEPPERS)}; also: scan)",
    )
    parser.add_argument("--max-frames", type=values.positive, default=1024, metavar="N", help="default: 1024")


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
