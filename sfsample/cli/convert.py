"""`sfsample convert`: changes the format of profiles, merges several into one, filters their stacks.

It reads files only.  Stacks are filtered (--filter, --ignore, --focus) before frames are merged
(--merge-by).  A filter that leaves no stack is an error, because the name was probably misspelt.
"""

import os
import re
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from sfsample.cli.output_file import Output
from sfsample.cli.symbol_flags import symbol_options
from sfsample.cli.terminal import say
from sfsample.cli.written import open_result, written_line
from sfsample.errors import BadInput, SfsampleError, UsageError
from sfsample.report.budget import Budget
from sfsample.report.formats import FORMATS, check_numbers, read_report
from sfsample.report.merge import filter_stacks, focus, merge, merge_by
from sfsample.report.naming import name_unnamed_frames
from sfsample.report.report import Report, ReportFrame
from sfsample.symbolize.symbolizer import OfflineSymbolizer


def run(arguments: Namespace) -> int:
    """Read, convert, write; return the exit code."""
    output = Output(arguments.output)
    report = _merged(arguments.inputs)
    if arguments.symbolize:
        report = name_unnamed_frames(report, OfflineSymbolizer(symbol_options(arguments)))
    for pattern in arguments.filter:
        report = _select(filter_stacks, report, "--filter", pattern)
    for pattern in arguments.ignore:
        report = _select(partial(filter_stacks, keep=False), report, "--ignore", pattern)
    if arguments.focus:
        report = _select(focus, report, "--focus", arguments.focus)
    if arguments.merge_by:
        report = merge_by(report, arguments.merge_by)
    _check_size(report, arguments)
    output.write(FORMATS[arguments.format].write(report, threads=arguments.threads))
    if not arguments.quiet:
        for line in written_line(arguments, output):
            say(" ".join(line.split()))
    open_result(arguments, output)
    return 0


def _check_size(report: Report, arguments: Namespace) -> None:
    """Raise SfsampleError where the output would be far larger than the inputs."""
    size = sum(map(os.path.getsize, filter(os.path.isfile, arguments.inputs)))
    if FORMATS[arguments.format].cost(report) > Budget(size).left:
        raise SfsampleError(f"cannot write: {arguments.output}: too large for -f {arguments.format}",
                            "choose another format (html, svg), or take a part with --filter or --focus",
                            )  # fmt: skip


def _merged(paths: list[str]) -> Report:
    report = merge([read_report(path) for path in paths])
    try:
        check_numbers(report)
    except BadInput as failure:
        raise SfsampleError(f"cannot merge: {failure}", "merge fewer files") from None
    return report


def _select(select: Callable[..., Report], report: Report, flag: str, pattern: str) -> Report:
    kept = select(report, _matcher(pattern))
    if report.stacks and not kept.stacks:
        raise SfsampleError(f"no stack is left: {flag} {pattern}",
                            "it is compared with the functions and modules of each stack")  # fmt: skip
    return kept


def _matcher(pattern: str) -> Callable[[ReportFrame], bool]:
    """Return whether the regular expression matches a part of a frame's text or module."""
    try:
        search = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as failure:
        raise UsageError(f"not a regular expression: {pattern}: {failure}",
                         "a plain word is a regular expression too") from None  # fmt: skip
    return lambda frame: bool(search(frame.text) or (frame.module and search(frame.module)))
