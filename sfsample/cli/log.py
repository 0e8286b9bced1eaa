"""Turns on the log of sfsample's own decisions: `SFSAMPLE_LOG=debug sfsample ...`.

It says why a thread was skipped, captured again, stopped or searched for, and why timers were chosen.  Each
package has one logger (`sfsample.process`, `sfsample.recording`, ...).  Nothing is logged between a stop and
its release.
"""

import logging

from sfsample.cli.terminal import printable
from sfsample.errors import UsageError

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class _Printable(logging.Formatter):
    """Names of threads and files are the target's: control characters do not reach the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def start_logging(level: str) -> None:
    """Log to stderr, from a level on.  Raises UsageError for an unknown one."""
    if level.lower() not in _LEVELS:
        raise UsageError(f"unknown log level: SFSAMPLE_LOG={level}", f"levels: {', '.join(_LEVELS)}")
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("sfsample: %(relativeCreated)d ms %(name)s: %(message)s"))
    logger = logging.getLogger("sfsample")
    logger.addHandler(handler)
    logger.setLevel(_LEVELS[level.lower()])
