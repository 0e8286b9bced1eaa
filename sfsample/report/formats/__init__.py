"""The formats of profiles: each is a module with `write`, and with `read` if it can be read back.

`FORMATS` lists what a recording can be written in.  `write(report, threads=...)` returns bytes; its module is
imported when it is used.
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
        data: bytes = import_module(f"sfsample.report.formats.{self.module}").write(report, threads=threads)
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
