"""`sfsample diff`: what changed between two profiles, as text, as JSON, or as a page with a flame graph.

It reads files only.  Only the page needs the stacks: otherwise each input is counted and dropped.
"""

from argparse import Namespace
from collections.abc import Callable

from sfsample.cli.inputs import find_files, read_files
from sfsample.cli.output_file import Output
from sfsample.cli.terminal import printable_lines
from sfsample.report.difference import Side, compare_sides, count
from sfsample.report.formats.difference import difference_html, difference_json, difference_text
from sfsample.report.report import Report


def run(arguments: Namespace) -> int:
    """Compare, write; return the exit code."""
    output = Output(arguments.output)
    kept: list[Report] = []
    before, after = [
        _count(path, output.file, kept.append if arguments.format == "html" else None)
        for path in arguments.inputs
    ]
    difference = compare_sides(before, after, relative=arguments.relative)
    if kept:
        output.write(difference_html(kept.pop(0), kept.pop(0), difference))
    elif arguments.format == "json":
        output.write(difference_json(difference))
    else:
        output.write(printable_lines(difference_text(difference, verbose=arguments.verbose)))
    return 0


def _count(path: str, result: str, keep: Callable[[Report], None] | None) -> Side:
    files = find_files([path], result=result)
    report = read_files(files)
    if keep is not None:
        keep(report)
    return count(report, "standard input" if path == "-" else path, len(files))
