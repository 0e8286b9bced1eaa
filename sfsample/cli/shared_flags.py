"""Flags that several commands have, declared once.

Law: a flag means the same in every command that has it.
"""

import argparse

from sfsample.cli import values


def output(parser: argparse.ArgumentParser) -> None:
    """Add where the result goes."""
    parser.add_argument("-o", "--output", default="-", metavar="FILE", help="file; - is stdout (default)")


def json_output(parser: argparse.ArgumentParser) -> None:
    """Add where the result goes, and as what."""
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    output(parser)


def target(parser: argparse.ArgumentParser, *, launches: bool = False) -> None:
    """Add which process."""
    parser.add_argument(
        "-p", "--pid", type=values.pids, action="extend", metavar="PID[,PID]", help="target process"
    )
    parser.add_argument(
        "-n", "--name", type=values.name, help="target by process name, or by words of its command line"
    )
    parser.add_argument("--all", action="store_true", help="with -n: all that match, not an error")
    if launches:
        parser.usage = "sfsample [record] (-p PID | -n NAME | -- COMMAND [ARG ...]) [options]"


def sampling(parser: argparse.ArgumentParser) -> None:
    """Add how to sample, for files."""
    rate_and_mode(parser)
    parser.add_argument("-t", "--threads", action="store_true", help="first frame is name/TID")
    parser.add_argument("--no-stop", action="store_false", dest="stop",
                        help="stop nothing: threads that run are counted as not captured")  # fmt: skip
    parser.add_argument("--max-pause", type=values.seconds, default=0.005, metavar="TIME",
                        help="let a thread go that is held for longer (default: 5ms)")  # fmt: skip
    parser.add_argument("--max-overhead", type=values.percent, metavar="PERCENT",
                        help="leave out ticks to cost less than this share of the time")  # fmt: skip
    walking(parser)


def rate_and_mode(parser: argparse.ArgumentParser) -> None:
    """Add how often, and which threads."""
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument(
        "-r", "--rate", type=values.rate, default=99.0, metavar="HZ", help="default: 99 per second"
    )
    rate.add_argument("--interval", type=values.interval, metavar="TIME", help="the same as a time: 10ms")
    parser.add_argument("--mode", choices=("cpu", "wall"), default="cpu",
                        help="cpu: threads that run (default); wall: all threads")  # fmt: skip
    parser.add_argument("--perf-events", action=argparse.BooleanOptionalAction,
                        help="stop nothing: the kernel copies what runs, by timer (mode cpu); default: once "
                        "no processor is free, or threads run too briefly to stop, if it may")  # fmt: skip
    parser.add_argument(
        "-s", "--subprocesses", action="store_true", help="descendants too, those born later included"
    )


def walking(parser: argparse.ArgumentParser) -> None:
    """Add how to walk stacks, and to name what is found."""
    unwinding(parser)
    parser.add_argument("--stack-bytes", type=values.size, default=256 << 10, metavar="N",
                        help="copy at most this much stack per thread (default: 256K)")  # fmt: skip
    parser.add_argument("--kernel", action="store_true",
                        help="where sleeping threads (--mode wall) are in the kernel (root)")  # fmt: skip
    naming(parser)


def unwinding(parser: argparse.ArgumentParser) -> None:
    """Add which tables to believe."""
    parser.add_argument(
        "--unwind",
        type=values.steppers,
        default=values.USUAL_STEPPERS,
        metavar="LIST",
        help=f"unwind with these, in order (default: {','.join(values.USUAL_STEPPERS)}; also: scan)",
    )
    parser.add_argument("--max-frames", type=values.positive, default=1024, metavar="N", help="default: 1024")


def naming(parser: argparse.ArgumentParser) -> None:
    """Add how places are named."""
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


def noise(parser: argparse.ArgumentParser) -> None:
    """Add how much to say."""
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument("-q", "--quiet", action="store_true", help="no summary")
    noise.add_argument("-v", "--verbose", action="store_true", help="name modules and all problems")
