"""Lists the formats that a recording can be written in: name -> writer.

A format is a module in this package with `write(report, threads=...) -> bytes`; it is imported when it is
used.
"""

from importlib import import_module
from typing import NamedTuple

from sfsample.report.report import Report


class Format(NamedTuple):
    """The module of the writer, and whether the format can show when each sample was taken."""

    module: str
    timeline: bool = False

    def write(self, report: Report, *, threads: bool = False) -> bytes:
        """Return the bytes of the file.  `threads`: a stack has its thread as root, in formats with roots."""
        data: bytes = import_module(f"sfsample.report.writers.{self.module}").write(report, threads=threads)
        return data


FORMATS = {
    "folded": Format("folded"),
    "json": Format("profile_json", timeline=True),
    "speedscope": Format("speedscope", timeline=True),
    "firefox": Format("firefox", timeline=True),
    "pprof": Format("pprof"),
    "html": Format("html"),
    "svg": Format("svg"),
}
