"""Says which file was written and what to do with it, and opens it if the user asks for it."""

import os
import webbrowser
from pathlib import Path
from shlex import quote

from sfsample.cli.options import OutputOptions, ProfileOutput
from sfsample.cli.output_file import Output
from sfsample.cli.terminal import say

_NEXT = {  # next step, by format
    "html": "open it in a browser (--open does)",
    "svg": "open it in a browser (--open does)",
    "speedscope": "open it with speedscope",
    "firefox": "load it into the Firefox Profiler",
    "pprof": "go tool pprof -http=: FILE",
    "json": "sfsample convert FILE -o STEM.html draws it",
    "folded": "sfsample convert FILE -o STEM.html draws it",
}


def written_line(options: OutputOptions, output: Output) -> list[str]:
    """Return the line of the summary about the result; none if the result is no regular file."""
    if not output.file:
        return []
    stem = options.path.rpartition(".")[0]
    if not stem or f"{stem}.html" == options.path:  # the page would replace the result
        stem = options.path
    what = _NEXT[options.format].replace("FILE", quote(options.path))
    what = what.replace("STEM.html", quote(f"{stem}.html"))
    return [f"written   {options.path}: {what}"]


def say_written(options: OutputOptions, output: Output, *, quiet: bool) -> None:
    """Say this line as a message, unless `quiet`."""
    for line in () if quiet else written_line(options, output):
        say(" ".join(line.split()))


def open_result(options: ProfileOutput, output: Output) -> None:
    """Open the result in a browser, if --open is set.  Not as root: PATH and BROWSER decide what runs."""
    if options.open and not os.geteuid():
        say(f"no browser is started as root: open {options.path} yourself")
    elif options.open and not webbrowser.open(Path(output.file).as_uri()):
        say(f"no browser was found: open {options.path} yourself")
