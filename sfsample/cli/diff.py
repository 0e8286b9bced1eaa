"""`sfsample diff`: what changed between two profiles, as text, as JSON, or as a page with a flame graph.

It reads files only.
"""

from argparse import Namespace

from sfsample.cli.output_file import Output
from sfsample.cli.terminal import printable_lines
from sfsample.report.difference import compare
from sfsample.report.formats import read_report
from sfsample.report.formats.difference import difference_html, difference_json, difference_text
from sfsample.report.json_text import json_text


def run(arguments: Namespace) -> int:
    """Compare, write; return the exit code."""
    output = Output(arguments.output)
    before, after = map(read_report, arguments.inputs)
    difference = compare(before, after)
    if arguments.format == "html":
        output.write(difference_html(before, after, difference))
    elif arguments.format == "json":
        output.write(json_text(difference_json(difference), indent=2))
    else:
        output.write(printable_lines(difference_text(difference, verbose=arguments.verbose)))
    return 0
