"""`sfsample diff`: what changed between two profiles.

Law: reads files only.  Text for people, JSON for scripts, a page for the whole picture.
"""

from argparse import Namespace

from sfsample.cli.console import Output
from sfsample.cli.terminal import printable
from sfsample.report.difference import compare
from sfsample.report.json_text import json_text
from sfsample.report.readers.read import read_report
from sfsample.report.report import Report


def run(arguments: Namespace) -> int:
    """Compare, write; return the exit code."""
    output = Output(arguments.output)
    try:
        before, after = map(read_report, arguments.inputs)
        output.write(_result(arguments, before, after))
    finally:
        output.discard()
    return 0


def _result(arguments: Namespace, before: Report, after: Report) -> str | bytes:
    from sfsample.report.writers.difference import difference_html, difference_json, difference_text

    found = compare(before, after)
    if arguments.format == "html":
        return difference_html(before, after, found)
    if arguments.format == "json":
        return json_text(difference_json(found), indent=2)
    return "".join(f"{printable(line)}\n" for line in difference_text(found, verbose=arguments.verbose))
