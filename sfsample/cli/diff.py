"""`sfsample diff`: compares two profiles, as text, as JSON, or as a page with a flame graph."""

from collections.abc import Callable, Sequence

from sfsample.cli.file_options import DiffCommand
from sfsample.cli.inputs import find_files, read_files
from sfsample.cli.output_file import Output
from sfsample.cli.record_options import Comparison
from sfsample.cli.terminal import say
from sfsample.core.printable import printable_lines
from sfsample.core.quantities import listed
from sfsample.report.difference import GREW, Difference, Ordinary, Side, compare_sides, count
from sfsample.report.formats.difference import difference_html, difference_json, difference_text, warnings
from sfsample.report.report import Report

_GREW = 6  # exit code of --fail-on
_MAX_NAMES = 3  # function names in the message of --fail-on


def run(command: DiffCommand) -> int:
    """Compare, write; return the exit code."""
    output = Output(command.output.path)
    reports: list[Report] = []
    keep = reports.append if command.output.format == "html" else None
    sides = [_count(path, output.file, keep, command.mode) for path in command.inputs]
    return write_difference(command, output, sides, reports)


def write_difference(
    command: Comparison, output: Output, sides: Sequence[Side], reports: list[Report],
    ordinary: Ordinary | None = None,
) -> int:  # fmt: skip
    """Compare two sides, and write the result; return the exit code.  `reports`: both reports, for a page."""
    before, after = sides
    difference = compare_sides(before, after, relative=command.relative, ordinary=ordinary)
    for warning in warnings(difference):
        say(f"warning: {warning}")
    if reports:
        output.write(difference_html(reports.pop(0), reports.pop(0), difference))
    elif command.output.format == "json":
        output.write(difference_json(difference))
    else:
        output.write(printable_lines(difference_text(difference, verbose=command.verbose)))
    fail_on = command.fail_on
    if fail_on is None:
        return 0
    if ordinary is not None and not ordinary.enough:
        say("--fail-on: too few comparable times to judge whether a function grew; exit code 1")
        return 1
    if grown := _grown(difference, 1 + fail_on):
        say(f"grew by more than {100 * fail_on:g} %: {listed(grown, _MAX_NAMES)}")
    return _GREW if grown else 0


def _grown(difference: Difference, ratio: float) -> list[str]:
    """Return the functions that grew beyond noise, to more than `ratio` times the earlier share."""
    changes = [change for change in (*difference.by_self, *difference.by_total) if change.verdict == GREW]
    names = [change.name for change in changes if change.share_after > ratio * change.share_before]
    return [*dict.fromkeys(names)]


def _count(path: str, result: str, keep: Callable[[Report], None] | None, mode: str) -> Side:
    files = find_files([path], result=result)
    report = read_files(files)
    if keep is not None:
        keep(report)
    return count(report, "standard input" if path == "-" else path, len(files), mode=mode)
