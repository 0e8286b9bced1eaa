"""Declares the flags of each action of `history`."""

from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Callable

from sfsample.cli import flags, values
from sfsample.core.quantities import large_size, seconds, spelled_seconds

HISTORY_ACTIONS = ("list", "show", "export", "diff", "prune", "check", "push")


def history_flags(parser: ArgumentParser) -> None:
    """Add the flags of `history` itself; each action has its own parser."""
    parser.usage = f"sfsample history ({' | '.join(HISTORY_ACTIONS)}) [options]"
    parser.add_argument("action", choices=HISTORY_ACTIONS, help=SUPPRESS)
    _add_history(parser)


def list_flags(parser: ArgumentParser) -> None:
    _add_slices(parser)
    flags.add_json_output(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="show labels")


def show_flags(parser: ArgumentParser) -> None:
    _add_slices(parser)
    flags.add_output(parser)
    add = parser.add_argument
    add("-f", "--format", choices=("text", "html", "json"), help=flags.TEXT_FORMAT)
    add("--json", action="store_const", const="json", dest="format", help="short for -f json")
    add("--open", action="store_true", help="open the result in a browser (html)")
    add("-t", "--threads", action="store_true", help="make the thread the first frame (html)")
    add("-q", "--quiet", action="store_true", help="do not say what was written")
    add("--waits", action="store_true", help="show waits instead of functions")
    add("-v", "--verbose", action="store_true", help="show all functions or all waits")


def export_flags(parser: ArgumentParser) -> None:
    _add_slices(parser)
    flags.add_profile_output(parser)
    add = parser.add_argument
    add("-t", "--threads", action="store_true", help="make the thread the first frame")
    add("--lines", action="store_true", help="print the executed line of each Python function")
    add("-q", "--quiet", action="store_true", help="do not say what was written")


def diff_flags(parser: ArgumentParser) -> None:
    add = _add_slices(parser, has_since=False)
    add("--with", type=values.when_or_build, dest="other", metavar="WHEN",
        help="compare with the time from WHEN on, or from the first slice of a build-id on")  # fmt: skip
    add("--deploy", nargs="?", const="", type=values.build_id, metavar="BUILDID",
        help="compare the times before and after the last new build, or BUILDID's first slice")  # fmt: skip
    flags.add_compared(parser)
    flags.add_json_output(parser, ("text", "html", "json"))
    parser.add_argument("-v", "--verbose", action="store_true", help="show every function")


def prune_flags(parser: ArgumentParser) -> None:
    _add_history(parser)
    add = parser.add_argument
    add("--keep-for", type=values.age, help="delete slices older than TIME{default}")
    add("--keep-bytes", type=large_size,
        help="delete the oldest slices until SIZE is left, but never the last day{default}")  # fmt: skip


def check_flags(parser: ArgumentParser) -> None:
    _add_history(parser)
    flags.add_output(parser)


def push_flags(parser: ArgumentParser) -> None:
    _add_history(parser)
    flags.add_push(parser, "send each slice (of one minute) once to a profile store")
    parser.add_argument("--follow", action="store_true",
                        help="then send new slices until Ctrl-C, or until stdin (a pipe) ends")  # fmt: skip


def _add_history(parser: ArgumentParser) -> None:
    parser.add_argument("--history", metavar="DIR",
                        help="where slices are (default: sfsample/history in XDG_STATE_HOME)")  # fmt: skip
    parser.add_argument("--utc", action="store_true",
                        help="print and read times in UTC (default: local time)")  # fmt: skip


def _add_slices(parser: ArgumentParser, *, has_since: bool = True) -> Callable[..., Action]:
    """Add a group of flags that choose slices; return the function that adds a flag to this group."""
    from sfsample.cli.watch_options import CHOSEN_S  # imported only for `history`

    _add_history(parser)
    group = parser.add_argument_group("choose slices (WHEN: now, -2h, 14:00, 'yesterday 14:00', ISO 8601)")
    add = group.add_argument
    add("--service", type=values.name_as_kept, metavar="NAME", help="slices of a service (NAME, OWNER/NAME)")
    add("--at", type=values.when, help="slices from the time WHEN on")
    add("--for", type=seconds, dest="length",
        help=f"with --at: length of the time after WHEN (default: {spelled_seconds(CHOSEN_S)})")  # fmt: skip
    if has_since:
        add("--since", type=values.since, help="slices of the last TIME (2h, 7d)")
    add("--label", type=values.label, action="append", dest="labels",
        help="slices with this label; if repeated, slices with all these labels")  # fmt: skip
    return add
