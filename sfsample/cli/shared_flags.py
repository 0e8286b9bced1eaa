"""Declares the flags that several commands have: a flag means the same in each of them."""

import argparse

from sfsample.cli import values


def output(parser: argparse.ArgumentParser) -> None:
    """Add the destination of the result."""
    parser.add_argument("-o", "--output", default="-", metavar="FILE",
                        help="write the result to FILE; - is stdout (default)")  # fmt: skip


def json_output(parser: argparse.ArgumentParser) -> None:
    """Add the destination of the result, and JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    output(parser)


def target(parser: argparse.ArgumentParser, *, launches: bool = False) -> None:
    """Add the flags that select processes; `launches`: the command can also start a program."""
    parser.add_argument("-p", "--pid", type=values.pids, action="extend", metavar="PID[,PID]",
                        help="process id; repeatable")  # fmt: skip
    parser.add_argument("-n", "--name", type=values.name,
                        help="select a process by its name, or by a part of its command line")  # fmt: skip
    parser.add_argument("--all", action="store_true",
                        help="with -n: select all that match (without: several are an error)")  # fmt: skip
    if launches:
        parser.usage = "sfsample [record] (-p PID | -n NAME | -- COMMAND [ARG ...]) [options]"


def sampling(parser: argparse.ArgumentParser) -> None:
    """Add how to sample, for commands that write profiles."""
    rate_and_mode(parser)
    parser.add_argument("-t", "--threads", action="store_true",
                        help="make name/TID the first frame: one root per thread")  # fmt: skip
    parser.add_argument("--no-stop", action="store_false", dest="stop",
                        help="stop no thread; running threads count as not captured")  # fmt: skip
    parser.add_argument("--max-pause", type=values.seconds, default=0.005, metavar="TIME",
                        help="release a thread that was stopped for TIME (default: 5ms)")  # fmt: skip
    parser.add_argument("--max-overhead", type=values.percent, metavar="PERCENT",
                        help="skip ticks, so that sampling takes at most PERCENT of the time")  # fmt: skip
    walking(parser)


def rate_and_mode(parser: argparse.ArgumentParser) -> None:
    """Add how often to sample, and which threads."""
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("-r", "--rate", type=values.rate, default=99.0, metavar="HZ",
                      help="samples per second (default: 99)")  # fmt: skip
    rate.add_argument("--interval", type=values.interval, dest="rate", metavar="TIME",
                      help="time between samples (10ms), instead of --rate")  # fmt: skip
    parser.add_argument("--mode", choices=("cpu", "wall"), default="cpu",
                        help="cpu: sample running threads (default); wall: sample all threads")  # fmt: skip
    parser.add_argument("--perf-events", action=argparse.BooleanOptionalAction,
                        help="sample by kernel timers, which stop no thread (--mode cpu); default: if "
                        "permitted, where no CPU is free or threads run too briefly to stop")  # fmt: skip
    parser.add_argument("-s", "--subprocesses", action="store_true",
                        help="sample descendants too, also those born later")  # fmt: skip


def walking(parser: argparse.ArgumentParser) -> None:
    """Add how to capture and walk stacks, and how to name the frames."""
    unwinding(parser)
    parser.add_argument("--stack-bytes", type=values.size, default=256 << 10, metavar="N",
                        help="copy at most N bytes of stack per thread (default: 256K)")  # fmt: skip
    parser.add_argument("--kernel", action="store_true",
                        help="add kernel frames of sleeping threads (--mode wall; needs root)")  # fmt: skip
    names(parser)


def unwinding(parser: argparse.ArgumentParser) -> None:
    """Add how to walk stacks."""
    parser.add_argument("--unwind", type=values.steppers, default=values.USUAL_STEPPERS, metavar="LIST",
                        help="unwind with these, in order "
                        f"(default: {','.join(values.USUAL_STEPPERS)}; also: scan)")  # fmt: skip
    parser.add_argument("--max-frames", type=values.positive, default=1024, metavar="N",
                        help="end a stack after N frames (default: 1024)")  # fmt: skip


def names(parser: argparse.ArgumentParser) -> None:
    """Add how to name frames."""
    group = parser.add_argument_group("function names")
    group.add_argument("--raw-names", action="store_true", help="print mangled names, as in symbol tables")
    group.add_argument("--simplify-names", action="store_true",
                       help="print C++ names without template arguments and parameter lists")  # fmt: skip
    group.add_argument("--merge-clones", action="store_true",
                       help="print f.cold, f.part.0 and f.constprop.1 as f")  # fmt: skip
    group.add_argument("--lines", action="store_true",
                       help="print file and line, from DWARF (install sfsample[lines])")  # fmt: skip
    group.add_argument("--inlines", action="store_true",
                       help="print inlined functions, marked _[i] (install sfsample[lines])")  # fmt: skip
    group.add_argument("--debuginfod", action="store_true",
                       help="get debug files from DEBUGINFOD_URLS; dump: only from its cache")  # fmt: skip
    group.add_argument("--debug-dir", action="append", default=[], metavar="DIR",
                       help="search debug files in DIR before /usr/lib/debug; repeatable")  # fmt: skip


def messages(parser: argparse.ArgumentParser) -> None:
    """Add how much to print on stderr."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("-q", "--quiet", action="store_true", help="print no summary")
    group.add_argument("-v", "--verbose", action="store_true", help="print all modules and all problems")
