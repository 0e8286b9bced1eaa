"""The history of periodic profiling: slices of services, kept for months in a directory."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Retention:
    """What is older than `keep_for` seconds is deleted, and the oldest until `keep_bytes` are left."""

    keep_for: float = 90 * 86400.0
    keep_bytes: int = 10 << 30


RETENTION = Retention()
