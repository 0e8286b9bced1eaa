"""`sfsample man`: prints the manual page, which is made from the same description of the flags as --help."""

from argparse import Namespace
from collections.abc import Iterator

from sfsample import __version__
from sfsample.cli.flags import GROUPS
from sfsample.cli.output_file import Output
from sfsample.cli.parse import ABOUT, describe
from sfsample.cli.terminal import printable_lines

_EXIT_CODES = (
    ("0", "done"),
    ("1", "failed, or nothing could be collected"),
    ("2", "the command line is wrong"),
    ("3", "no such process, or it ended before the first sample"),
    ("4", "not permitted; sfsample doctor shows why"),
    ("5", "dump: printed, but some thread or process could not be captured"),
)


def run(_arguments: Namespace) -> int:
    """Print the manual page."""
    Output("-").write(printable_lines(page()))
    return 0


def page() -> Iterator[str]:
    """Yield the lines of sfsample(1), in roff."""
    yield f'.TH SFSAMPLE 1 "" "sfsample {__version__}" "User Commands"'
    yield from (".SH NAME", f"sfsample \\- {_escape(ABOUT[0].lower() + ABOUT[1:].rstrip('.'))}")
    yield from (
        ".SH SYNOPSIS",
        ".B sfsample",
        "COMMAND [options]",
        ".br",
        ".B sfsample",
        "\\-p PID [options]",
    )
    for title, commands in GROUPS:
        yield f".SH {title.upper()}"
        for name, _, summary, examples in commands:
            yield from _command(name, summary, examples)
    yield ".SH EXIT STATUS"
    for code, meaning in _EXIT_CODES:
        yield from (".TP", f".B {code}", _escape(meaning))


def _command(name: str, summary: str, examples: tuple[tuple[str, str], ...]) -> Iterator[str]:
    usage, flags = describe(name)
    yield from (f".SS sfsample {name}", _escape(f"{summary[0].upper()}{summary[1:]}."), ".PP")
    yield _escape(" ".join(usage.removeprefix("usage: ").split()))
    for flag in flags:
        names = ", ".join(f"\\fB{_escape(flag_name)}\\fR" for flag_name in flag.names)
        value = f"\\fI{_escape(flag.value)}\\fR" if flag.value else ""
        yield from (".TP", f"{names} {value}".strip(), _escape(flag.help))
    for words, caption in examples:
        yield from (".PP", ".nf", f"    sfsample {_escape(words)}", ".fi", _escape(caption))


def _escape(text: str) -> str:
    """Escape what roff would interpret."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("%%", "%")
    return f"\\&{text}" if text[:1] in (".", "'") else text
