"""The formats a recording can be written in: name -> writer.

Law: the one list of them.  A format is a module here with `write(report, threads=...) -> bytes`, loaded when
it is used; its suffixes choose it when the user does not.
"""

from importlib import import_module
from typing import NamedTuple

from sfsample.report.report import Report


class Format(NamedTuple):
    """Where its writer is, and whether it shows when each sample was taken."""

    module: str
    timeline: bool = False

    def write(self, report: Report, *, threads: bool = False) -> bytes:
        """Return the file's bytes.  `threads`: where threads can be roots, they are."""
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
