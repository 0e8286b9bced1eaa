"""Samples as a recorder hands them to a profile."""

from collections.abc import Iterable

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Stack
from sfsample.modules.location import Location
from sfsample.recording.sample import Sample, ThreadKey


def sample(
    thread: ThreadKey,
    places: Iterable[Location],
    stack: Stack,
    *,
    name: str = "t",
    at_ns: int = 0,
    wall_ns: int = 0,
    cpu_ns: int = 0,
    times: int = 1,
) -> Sample:
    """Return a sample of a thread that was stopped."""
    return Sample(thread, name, stack, tuple(places), Capture.STOPPED, at_ns, wall_ns, cpu_ns, times)
