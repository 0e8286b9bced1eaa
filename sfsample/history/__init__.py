"""The history of periodic profiling: slices of services, kept for months in a directory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Retention:
    """Slices older than `keep_for` seconds are deleted, and the oldest slices beyond `keep_bytes`."""

    keep_for: float = 90 * 86400.0
    keep_bytes: int = 10 << 30


RETENTION = Retention()
