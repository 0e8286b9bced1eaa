"""Says which file was written and what to do with it, and opens it on request."""

import os
import webbrowser
from argparse import Namespace
from pathlib import Path
from shlex import quote

from sfsample.cli.output_file import Output
from sfsample.cli.terminal import say

_NEXT = {  # by format
    "html": "open it in a browser (--open does)",
    "svg": "open it in a browser (--open does)",
    "speedscope": "open it with speedscope",
    "firefox": "load it into the Firefox Profiler",
    "pprof": "go tool pprof -http=: FILE",
    "json": "sfsample convert FILE -o STEM.html draws it",
    "folded": "sfsample convert FILE -o STEM.html draws it",
}


def written_line(arguments: Namespace, output: Output) -> list[str]:
    """Return the line about the result, as the summary has it; none if it is no regular file."""
    if not output.file:
        return []
    stem = arguments.output.rpartition(".")[0]
    if not stem or f"{stem}.html" == arguments.output:  # which it would replace
        stem = arguments.output
    what = _NEXT[arguments.format].replace("FILE", quote(arguments.output))
    what = what.replace("STEM.html", quote(f"{stem}.html"))
    return [f"written   {arguments.output}: {what}"]


def say_written(arguments: Namespace, output: Output) -> None:
    """Say it as a message of its own, unless --quiet was given."""
    for line in () if arguments.quiet else written_line(arguments, output):
        say(" ".join(line.split()))


def open_result(arguments: Namespace, output: Output) -> None:
    """Open the result in a browser, if --open was given; not as root: PATH and BROWSER decide what runs."""
    if arguments.open and not os.geteuid():
        say(f"no browser is started as root: open {arguments.output} yourself")
    elif arguments.open and not webbrowser.open(Path(output.file).as_uri()):
        say(f"no browser was found: open {arguments.output} yourself")
