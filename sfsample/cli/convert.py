"""`sfsample convert`: profiles from one format to another; several become one.

Law: reads files only.  What is chosen (--filter, --ignore, --focus) is chosen before frames are made one
(--merge-by); a choice that leaves nothing is an error, because a name was probably misspelt.
"""

import re
from argparse import Namespace
from collections.abc import Callable, Sequence

from sfsample.cli.console import Output
from sfsample.cli.progress import Progress
from sfsample.errors import SfsampleError, UsageError
from sfsample.report.merge import filter_stacks, focus, merge, merge_by
from sfsample.report.readers.read import read_report
from sfsample.report.report import Report, ReportFrame
from sfsample.report.symbolize_report import FindNames, symbolize_report
from sfsample.report.writers.formats import FORMATS
from sfsample.symbolize.named_frame import NamedFrame


def run(arguments: Namespace) -> int:
    """Read, change, write; return the exit code."""
    output = Output(arguments.output)
    try:
        with Progress(quiet=arguments.quiet) as progress:
            reports = []
            for number, path in enumerate(arguments.inputs, 1):
                progress.show(f"reading {number} of {len(arguments.inputs)}: {path}")
                reports.append(read_report(path))
            progress.show("merging")
            report = _change(arguments, merge(reports))
            progress.show(f"writing {arguments.format}: {len(report.stacks)} stacks")
            data = FORMATS[arguments.format].write(report, threads=arguments.threads)
        output.write(data)
    finally:
        output.discard()
    return 0


def _change(arguments: Namespace, report: Report) -> Report:
    if arguments.symbolize:
        report = symbolize_report(report, _names(arguments))
    for pattern in arguments.filter or ():
        report = _something(filter_stacks(report, _matches(pattern)), report, f"--filter {pattern}")
    for pattern in arguments.ignore or ():
        report = _something(
            filter_stacks(report, _matches(pattern), keep=False), report, f"--ignore {pattern}"
        )
    if arguments.focus:
        report = _something(focus(report, _matches(arguments.focus)), report, f"--focus {arguments.focus}")
    return merge_by(report, arguments.merge_by) if arguments.merge_by else report


def _names(arguments: Namespace) -> FindNames:
    """Return what names places by build-id; imported when asked for."""
    from sfsample.cli.symbol_flags import naming
    from sfsample.symbolize.offline import OfflineSymbolizer

    offline = OfflineSymbolizer(naming(arguments))

    def names(module: str, build_id: str, offset: int, exact: bool) -> Sequence[NamedFrame]:
        return offline.frames(module, build_id, offset, exact=exact)

    return names


def _matches(pattern: str) -> Callable[[ReportFrame], bool]:
    """Return whether a frame's text or module holds what the regular expression describes."""
    try:
        find = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as failure:
        raise UsageError(
            f"not a regular expression: {pattern}: {failure}", "a plain word is one too"
        ) from None
    return lambda frame: bool(find(frame.text) or (frame.module and find(frame.module)))


def _something(chosen: Report, before: Report, flag: str) -> Report:
    if before.stacks and not chosen.stacks:
        raise SfsampleError(
            f"nothing is left: {flag}", "it is compared with functions and modules of each stack"
        )
    return chosen
