"""`sfsample convert`: changes the format of profiles, merges several into one, filters their stacks."""

import re
from collections.abc import Callable
from functools import partial

from sfsample.cli.environment import symbol_options
from sfsample.cli.file_options import ConvertCommand
from sfsample.cli.inputs import find_files, read_files, size_of
from sfsample.cli.options import OutputOptions
from sfsample.cli.output_file import Output, as_asked, say_written
from sfsample.errors import SfsampleError, UsageError
from sfsample.report.budget import ReadingBudget
from sfsample.report.formats import FORMATS
from sfsample.report.merge import filter_stacks, focus, merge_by
from sfsample.report.naming import name_unnamed_frames, with_python_lines
from sfsample.report.report import Report
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.symbolizer import OfflineSymbolizer


def run(command: ConvertCommand) -> int:
    """Read, convert, write; return the exit code."""
    output = Output(command.output.path)
    files = find_files(command.inputs, result=output.file, quiet=command.quiet)
    report = read_files(files)
    if command.symbolize:
        symbols = symbol_options(command.names, quiet=command.quiet)
        report = name_unnamed_frames(report, OfflineSymbolizer(symbols))
    if command.names.lines:
        report = with_python_lines(report)
    report = as_asked(report, command.output)
    for pattern in command.filter:
        report = _select(filter_stacks, report, "--filter", pattern)
    for pattern in command.ignore:
        report = _select(partial(filter_stacks, keep=False), report, "--ignore", pattern)
    if command.focus:
        report = _select(focus, report, "--focus", command.focus)
    if command.merge_by:
        report = merge_by(report, command.merge_by)
    _check_size(report, files, command.output)
    output.write(FORMATS[command.output.format].write(report, threads=command.output.threads))
    say_written(command.output, output, quiet=command.quiet)
    return 0


def _check_size(report: Report, files: list[str], output: OutputOptions) -> None:
    if FORMATS[output.format].cost(report) > ReadingBudget(size_of(files)).left:
        raise SfsampleError(f"cannot write: {output.path}: too large for -f {output.format}",
                            "choose another format (html, svg), or select stacks with --filter or --focus",
                            )  # fmt: skip


def _select(select: Callable[..., Report], report: Report, flag: str, pattern: str) -> Report:
    selected = select(report, _matcher(pattern))
    if report.stacks and not selected.stacks:
        raise SfsampleError(f"no stack is left: {flag} {pattern}",
                            "sfsample searches for REGEX in the names of functions and modules")  # fmt: skip
    return selected


def _matcher(pattern: str) -> Callable[[NamedFrame], bool]:
    try:
        search = re.compile(pattern).search
    except (re.error, RecursionError, OverflowError) as failure:
        raise UsageError(f"not a regular expression: {pattern}: {failure}",
                         "use a plain word, or put a backslash before ( [ { * + ?") from None  # fmt: skip
    return lambda frame: bool(search(frame.text) or (frame.module and search(frame.module)))
