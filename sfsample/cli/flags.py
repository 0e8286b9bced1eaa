"""Declares the flags of each command (`cli/commands.py`); a flag means the same in each command.

sfsample makes help and completion from these declarations.  The `dest` of a flag names a field of the
command's value (`cli/options.py`); the field has the flag's default.  "{default}" in a help text becomes
" (default: 5ms)", for example.  `cli/parse.py` has the placeholders of values, such as TIME.
"""

from argparse import ArgumentParser, BooleanOptionalAction

from sfsample.cli import values
from sfsample.core.python_view import PythonView
from sfsample.core.quantities import large_size, seconds
from sfsample.report.suffixes import FORMATS

TEXT_FORMAT = "format of the result (default: by the suffix of -o, else text)"
_INPUT = 'a profile (json of sfsample, folded, pprof), a directory, or a pattern ("2026-11-*.json")'
_KERNEL = ("show kernel frames of all threads (as root, in --mode wall), or of no thread "
           "(default: of running threads, if permitted)")  # fmt: skip


def record_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample [record] (PID... | -n NAME | -- COMMAND [ARG...]) [options]"
    _add_target(parser)
    _add_groups(parser)
    _add_sampling(parser)
    add = parser.add_argument
    add("-d", "--duration", type=seconds,
        help="record for TIME: 10, 500ms, 2m (default: until Ctrl-C or the end of the target)")  # fmt: skip
    add_profile_output(parser)
    add("--stats", metavar="FILE", help="write statistics as JSON to FILE; - is stderr")
    _add_idle(parser)
    _add_messages(parser)


def dump_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample dump (PID... | -n NAME | --core CORE) [options]"
    _add_target(parser)
    _add_groups(parser)
    add = parser.add_argument
    add("--looks", type=values.dump_samples, help="take N samples, to see which threads run{default}")
    add("--interval", type=seconds, help="time between two samples{default}")
    add("--timeout", type=seconds, help="after TIME, print the captured threads; exit code 5{default}")
    add("--depth", type=values.positive, help="show at most N frames of each stack (default: all)")
    add("--connections", type=values.positive, help="list at most N connections of an event loop{default}")
    add("--locals", action="store_true",
        help="show arguments and local variables of Python frames; these may contain secrets")  # fmt: skip
    when = parser.add_mutually_exclusive_group()
    when.add_argument(
        "--no-stop", action="store_false", dest="stop", help="stop no thread; running threads are not shown"
    )
    when.add_argument("--consistent", action="store_true",
                      help="capture all threads at one instant: hold every running thread until all are "
                      "captured")  # fmt: skip
    add("-s", "--subprocesses", action="store_true", help="also dump all descendants")
    add("--core", metavar="CORE", help="read a core file instead of a process")
    add("--exe", metavar="FILE", help="with --core: path of the program, if the program was moved")
    add("--sysroot", metavar="DIR", help="with --core: search for programs and libraries under DIR")
    _add_walking(parser, "also show the kernel stack of each thread (needs root)")
    add_json_output(parser)
    _add_messages(parser)


def watch_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample watch (PID... | -n NAME | --unit UNIT | ...) [options]"
    _add_target(parser)
    _add_groups(parser, "since the last slice")
    add = parser.add_argument
    add("--unit", type=values.name, metavar="UNIT", help="select all processes of a systemd unit")
    _add_sampling(parser, " for all processes together{default}")
    _add_idle(parser)
    add("--every", type=seconds, help="start a slice every TIME{default}")
    add("--for", type=seconds, dest="slice", help="length of a slice (default: TIME of --every, so no gaps)")
    add("--history", metavar="DIR",
        help="keep slices in DIR, for `sfsample history` (default: sfsample/history in XDG_STATE_HOME; "
        "with --output-dir: no history)")  # fmt: skip
    add("--no-history", action="store_true", help="keep no history; only write files")
    add("--output-dir", metavar="DIR", help="write one file per slice to DIR")
    add("-f", "--format", choices=FORMATS, help="format of each file{default}")
    add("--keep", type=values.positive, help="keep only the newest N files")
    add("--keep-for", type=values.age,
        help="delete slices older than TIME: 12h, 7d, 4w (default: 90d for a history, no limit for "
        "files)")  # fmt: skip
    add("--keep-bytes", type=large_size,
        help="delete the oldest slices until SIZE is left: 2G (default: 10G for a history, no limit for "
        "files)")  # fmt: skip
    add("--config", metavar="FILE", help="take flags from a TOML file; typed flags win")
    add("--check", action="store_true", help="only check the flags and the --config file")
    add = parser.add_argument_group("record more when a condition is met, or at SIGUSR1").add_argument
    add("--trigger", type=values.condition, action="append", dest="triggers", metavar="CONDITION",
        help="when CONDITION is met: pin slices of the last 2 minutes, take a dump, record 30 s at 99 Hz; "
        "repeatable; examples: 'cpu>80' (percent of one CPU), 'cpu>p99' (percentile of the last day), "
        "'rss>2G', 'threads>500', 'psi.cpu>20', 'delay>10' (percent), 'stuck>30s'")  # fmt: skip
    add("--cooldown", type=seconds, help="after a trigger, ignore conditions for TIME{default}")
    add = parser.add_argument_group("profiles, metrics and health over HTTP").add_argument
    add("--listen", type=values.listen, dest="address", metavar="ADDR:PORT|unix:PATH",
        help="serve /debug/pprof/profile?seconds=N, /metrics and /healthz at this address")  # fmt: skip
    add("--listen-token-file", dest="token_file", metavar="FILE",
        help="answer only requests with the token in FILE; needed if ADDR is not loopback")  # fmt: skip
    add("--listen-host", action="append", dest="hosts", metavar="NAME",
        help="also accept requests whose Host header is NAME; repeatable")  # fmt: skip
    add_push(parser, "send each new slice of the history to a profile store (docs/push.md)")
    _add_messages(parser)


def inspect_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample inspect (ELF | -p PID | -n NAME) [options]"
    add = parser.add_argument
    add("elf", nargs="?", metavar="ELF", help="a program or library")
    _add_target(parser, bare=False)
    add("--rows", action="store_true", help="show every function and every row of the SFrame table")
    add_json_output(parser)
    _add_messages(parser)


def doctor_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample doctor [PID... | -n NAME] [options]"
    _add_target(parser)
    add_json_output(parser)


def top_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample top (PID... | -n NAME) [options]"
    _add_target(parser)
    _add_groups(parser)
    _add_rate_and_mode(parser)
    parser.add_argument("--window", type=seconds, help="show the samples of the last TIME{default}")
    _add_walking(parser)


def convert_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample convert INPUT... [-o OUTPUT] [options]"
    add = parser.add_argument
    add("inputs", nargs="+", metavar="INPUT", help=f"{_INPUT}; - is stdin")
    add_profile_output(parser)
    add("-t", "--threads", action="store_true", help="make name/TID the first frame: one root per thread")
    add("--filter", action="append", metavar="REGEX",
        help="keep stacks with a matching function or module; if repeated, all must match")  # fmt: skip
    add("--ignore", action="append", metavar="REGEX",
        help="drop stacks with a matching function or module; repeatable")  # fmt: skip
    add("--focus", metavar="REGEX",
        help="make the outermost matching function the first frame; drop stacks without match")  # fmt: skip
    add("--merge-by", choices=("function", "module", "address"),
        help="merge frames that have the same function, module or address")  # fmt: skip
    add("--symbolize", action="store_true", help="add missing names, from files with the same build-id")
    _add_names(parser)
    add("-q", "--quiet", action="store_true", help="do not say what was written")


def diff_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample diff BEFORE AFTER [options]"
    add = parser.add_argument
    add("inputs", nargs=2, metavar="BEFORE AFTER", help=_INPUT)
    add_compared(parser)
    add_json_output(parser, ("text", "html", "json"),
                     "format of the result; html is a flame graph (default: by the suffix of -o, else "
                     "text)")  # fmt: skip
    add("-v", "--verbose", action="store_true", help="show every function that changed")


def service_flags(parser: ArgumentParser) -> None:
    parser.usage = "sfsample service (show | install) [options]"
    add = parser.add_argument
    add("action", choices=("show", "install"), help="print the systemd unit, or write it")
    add("--config", metavar="FILE", help="flags of `sfsample watch`, as TOML{default}")
    add("--force", action="store_true", help="replace an existing unit")


def completion_flags(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell of the script")


# -- flags that several commands have


def add_output(parser: ArgumentParser) -> None:
    parser.add_argument("-o", "--output", dest="path", metavar="FILE",
                        help="write the result to FILE; - is stdout (default)")  # fmt: skip


def add_push(parser: ArgumentParser, title: str) -> None:
    """Add the flags about the backends that slices are sent to."""
    add = parser.add_argument_group(title).add_argument
    add("--push", type=values.push, action="append", dest="backends", metavar="KIND=URL",
        help="pyroscope=http://HOST:4040, parca=http://HOST:7070, otlp=http://HOST:4318 (experimental); "
        "repeatable")  # fmt: skip
    add("--push-auth-file", dest="auth_file", metavar="FILE",
        help="add the headers in FILE, such as `Authorization: Bearer TOKEN`")  # fmt: skip


def add_compared(parser: ArgumentParser) -> None:
    """Add the flags about comparing two profiles."""
    add = parser.add_argument
    add("--relative", action="store_true",
        help="compare shares of all samples (default: rates, if both inputs have durations)")  # fmt: skip
    add("--fail-on", type=values.growth,
        help="exit with code 6 if a function grew beyond noise, by more than PERCENT")  # fmt: skip
    add("--mode", choices=("cpu", "wall"),
        help="cpu: compare CPU time; wall: compare the samples of all threads{default}")  # fmt: skip


def add_profile_output(parser: ArgumentParser) -> None:
    add_output(parser)
    parser.add_argument("-f", "--format", choices=FORMATS,
                        help="format of the result (default: by the suffix of -o, else folded)")  # fmt: skip
    parser.add_argument("--by", choices=("wait",),
                        help="make the class of the wait the first frame (--mode wall)")  # fmt: skip
    parser.add_argument("--mark-python", action="store_true", help="add _[p] to names of Python functions")
    parser.add_argument("--open", action="store_true", help="open the result in a browser (html, svg)")


def add_json_output(parser: ArgumentParser, formats: tuple[str, ...] = ("text", "json"),
                     what: str = TEXT_FORMAT) -> None:  # fmt: skip
    add = parser.add_argument
    add("-f", "--format", choices=formats, help=what)
    add("--json", action="store_const", const="json", dest="format", help="short for -f json")
    add_output(parser)


def _add_target(parser: ArgumentParser, *, bare: bool = True) -> None:
    """Add the flags that name the target.  `bare`: process ids are accepted with and without -p."""
    add = parser.add_argument
    if bare:
        add("pids", nargs="*", metavar="PID", help="process ids (-p is optional)")
    add("-p", "--pid", type=values.pids, action="extend", metavar="PID[,PID]", help="process id; repeatable")
    add("-n", "--name", type=values.name,
        help="select a process by its name, or by a part of its command line")  # fmt: skip
    add("--all", action="store_true",
        help="with -n: take every match; without it, more than one match is an error")  # fmt: skip


def _add_groups(parser: ArgumentParser, busy_time: str = "in one second") -> None:
    add = parser.add_argument_group("several processes at once").add_argument
    add("--cgroup", type=values.name, metavar="PATH", help="all processes of a control group, recursively")
    add("--container", type=values.name, metavar="ID",
        help="all processes in a container (docker, containerd, CRI-O, podman); ID or a prefix")  # fmt: skip
    add("--pod", type=values.name, metavar="UID", help="all processes in a Kubernetes pod")
    add("--user", type=values.name, metavar="NAME|UID", help="all processes of a user")
    add("--busiest", type=values.positive, help=f"the N processes that use most CPU time {busy_time}")


def _add_sampling(parser: ArgumentParser, usual_overhead: str = "") -> None:
    _add_rate_and_mode(parser)
    add = parser.add_argument
    add("-t", "--threads", action="store_true", help="make name/TID the first frame: one root per thread")
    add("--no-stop", action="store_false", dest="stop",
        help="stop no thread, so running threads cannot be captured")  # fmt: skip
    add("--max-pause", type=seconds, help="never hold a thread for longer than TIME{default}")
    add("--max-overhead", type=values.percent,
        help="lower the rate until sampling takes at most PERCENT of one CPU"
        f"{usual_overhead}")  # fmt: skip
    add("--label", type=values.label, action="append", dest="labels",
        help="add a label to the profile: team=shop; repeatable; wins over the target's label")  # fmt: skip
    add("--no-environ", action="store_false", dest="environ",
        help="read no labels from environment variables of the target")  # fmt: skip
    _add_walking(parser)


def _add_rate_and_mode(parser: ArgumentParser) -> None:
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("-r", "--rate", "-F", "--freq", type=values.rate, help="samples per second{default}")
    rate.add_argument("--interval", type=values.interval, dest="rate", metavar="TIME",
                      help="time between samples (10ms), instead of --rate")  # fmt: skip
    add = parser.add_argument
    add("--mode", choices=("cpu", "wall"),
        help="cpu: sample running threads; wall: sample all threads{default}")  # fmt: skip
    add("--perf-events", action=BooleanOptionalAction,
        help="sample by kernel timers, which stop no thread; --mode cpu only (default: if no CPU is free or "
        "threads run too briefly to stop, and timers are permitted)")  # fmt: skip
    add("--gil", action="store_true",
        help="count only samples of threads that hold the GIL of CPython 3.11 or later")  # fmt: skip
    add("--tasks", action="store_true",
        help="sample suspended asyncio tasks and goroutines like threads (--mode wall only)")  # fmt: skip
    add("-s", "--subprocesses", action="store_true", help="also sample all present and future descendants")
    add("--blame", action="store_true",
        help="with --mode wall: show the stack of a lock's holder below the stacks of waiters")  # fmt: skip
    add("--min-wait", type=seconds, help="with --mode wall: leave out waits that are shorter than TIME")
    add("--wait-details", action="store_true",
        help="with --mode wall: show addresses, descriptors and pids in the frames of waits")  # fmt: skip


def _add_idle(parser: ArgumentParser) -> None:
    parser.add_argument("--idle", action="store_true",
                        help="with --mode wall: show the stacks of threads that wait for work")  # fmt: skip


def _add_walking(parser: ArgumentParser, kernel: str = _KERNEL) -> None:
    add = parser.add_argument
    add("--unwind", type=values.steppers, dest="steppers", metavar="LIST",
        help="ways to unwind, in the order in which sfsample tries them{default}")  # fmt: skip
    add("--max-frames", type=values.positive, help="cut a stack after N frames{default}")
    add("--stack-bytes", type=values.size, metavar="N",
        help="copy at most N bytes of stack per thread{default}")  # fmt: skip
    add("--kernel", action=BooleanOptionalAction, help=kernel)
    add("--python", choices=("auto", "only", "off"), type=PythonView,
        help="auto: Python and native frames; only: Python; off: native frames{default}")  # fmt: skip
    add("--native", "--native-interpreter", action="store_const", dest="python", const=PythonView.ALL,
        help="keep the native frames of the interpreter between Python frames")  # fmt: skip
    _add_names(parser)


def _add_names(parser: ArgumentParser) -> None:
    add = parser.add_argument_group("function names").add_argument
    add("--raw-names", action="store_true", dest="raw", help="print mangled names, as in symbol tables")
    add("--simplify-names", action="store_true", dest="simplify",
        help="print C++ names without template arguments and parameter lists")  # fmt: skip
    add("--merge-clones", action="store_true", help="print f.cold, f.part.0 and f.constprop.1 as f")
    add("--lines", action="store_true", help="print file and line (for native code: install sfsample[lines])")
    add("--inlines", action="store_true",
        help="print inlined functions, marked _[i] (install sfsample[lines])")  # fmt: skip
    add("--debuginfod", action="store_true",
        help="get debug files from DEBUGINFOD_URLS (`dump`: only from debuginfod's cache)")  # fmt: skip
    add("--debug-dir", action="append", dest="debug_dirs", metavar="DIR",
        help="search for debug files in DIR before /usr/lib/debug; repeatable")  # fmt: skip


def _add_messages(parser: ArgumentParser) -> None:
    add = parser.add_mutually_exclusive_group().add_argument
    add("-q", "--quiet", action="store_true", help="print no summary")
    add("-v", "--verbose", action="store_true", help="print all modules and all problems")
