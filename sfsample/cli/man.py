"""`sfsample man`: the manual page, made from what --help is made from.

Law: nothing is said here that is not said in cli/flags.py or cli/parse.py; roff's own characters are
escaped.
"""

from argparse import Namespace
from collections.abc import Iterator

from sfsample import __version__
from sfsample.cli.console import Output
from sfsample.cli.flags import GROUPS
from sfsample.cli.parse import ABOUT, described

_EXITS = (
    ("0", "done"),
    ("1", "failed, or nothing could be collected"),
    ("2", "the command line makes no sense"),
    ("3", "no such process, or it ended before the first sample"),
    ("4", "not permitted; sfsample doctor tells why"),
    ("5", "dump: printed, but some thread or process could not be captured"),
)


def run(_arguments: Namespace) -> int:
    """Print it."""
    Output("-").write("".join(f"{line}\n" for line in page()))
    return 0


def page() -> Iterator[str]:
    """Yield the lines of sfsample(1)."""
    yield f'.TH SFSAMPLE 1 "" "sfsample {__version__}" "User Commands"'
    yield from (".SH NAME", f"sfsample \\- {_plain(ABOUT[0].lower() + ABOUT[1:].rstrip('.'))}")
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
        for name, _, what, examples in commands:
            yield from _command(name, what, examples)
    yield ".SH EXIT STATUS"
    for code, what in _EXITS:
        yield from (".TP", f".B {code}", _plain(what))


def _command(name: str, what: str, examples: tuple[tuple[str, str], ...]) -> Iterator[str]:
    usage, flags = described(name)
    yield from (f".SS sfsample {name}", _plain(f"{what[0].upper()}{what[1:]}."), ".PP")
    yield _plain(" ".join(usage.removeprefix("usage: ").split()))
    for flag in flags:
        names = ", ".join(f"\\fB{_plain(one)}\\fR" for one in flag.names)
        value = f"\\fI{_plain(flag.value)}\\fR" if flag.value else ""
        yield from (".TP", f"{names} {value}".strip(), _plain(flag.help))
    for words, why in examples:
        yield from (".PP", ".nf", f"    sfsample {_plain(words)}", ".fi", _plain(why))


def _plain(text: str) -> str:
    """Escape what roff would take for itself."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("%%", "%")
    return f"\\&{text}" if text[:1] in (".", "'") else text
