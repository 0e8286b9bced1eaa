"""Makes a report from a profile: every location gets its names.

The symbolizer decides what a location is called; this module puts the names into the tables of a report.  A
location with inlined functions becomes one frame for each function.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from sfsample.modules.location import Location, pid_of
from sfsample.recording.profile import Profile, Timeline
from sfsample.recording.sample import StackKey
from sfsample.report.builder import ReportBuilder
from sfsample.report.report import WEIGHTS, Report, ReportFrame, ReportThread, ReportTimeline
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.missing import MissingName
from sfsample.symbolize.named_frame import NamedFrame


class FrameNamer(Protocol):
    """Names the functions at a location: the symbolizer, or a cache in front of it."""

    def frames(self, location: Location, /) -> tuple[NamedFrame, ...]:
        """Return the functions at a location, at least one, the innermost inlined function first."""
        ...

    def missing_names(self) -> Sequence[MissingName]:
        """Return which of the locations asked for have no name, and why."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """Descriptions of symbol files that could not be read."""
        ...


def name_profile(profile: Profile, namer: FrameNamer) -> Report:
    """Return the report of a profile."""
    has_cpu_time = any(total.cpu_ns for total in profile.totals.values())  # all zero: it was not measured
    weights = WEIGHTS if has_cpu_time else WEIGHTS[:-1]
    builder = ReportBuilder(weights)
    named: dict[Location, tuple[ReportFrame, ...]] = {}
    indexes: dict[StackKey, int] = {}
    for key, total in profile.totals.items():
        frames: list[ReportFrame] = []
        for location in key.locations:
            if location not in named:
                named[location] = tuple(_frame(location, frame) for frame in namer.frames(location))
            frames.extend(named[location])
        numbers = (total.times, total.wall_ns, total.cpu_ns)
        indexes[key] = builder.add(
            _thread(profile, key), frames, str(key.stop_reason), numbers[: len(weights)]
        )
    return builder.finish(
        started_ns=profile.started_ns or None,
        rate_hz=profile.stats.rate_hz,
        duration_ns=round(profile.stats.duration_s * 1e9),
        timeline=None if profile.timeline is None else _timeline(profile.timeline, indexes),
        stats=_stats(profile, namer),
    )


def _stats(profile: Profile, namer: FrameNamer) -> dict[str, Any]:
    """Return what the recording lost and what the symbolizer could not name."""
    stats = profile.stats.as_json()
    stats["problems"] += namer.problems
    return {**stats, "unnamed": [missing._asdict() for missing in namer.missing_names()]}


def _timeline(timeline: Timeline, indexes: dict[StackKey, int]) -> ReportTimeline:
    stacks = [indexes[key] for key in timeline.keys]
    return ReportTimeline(timeline.at_ns, [stacks[at] for at in timeline.stack], timeline.times,
                          timeline.wall_ns, timeline.cpu_ns, timeline.dropped)  # fmt: skip


def _thread(profile: Profile, key: StackKey) -> ReportThread:
    process, name = profile.processes[key.pid], profile.threads[key.thread]
    return ReportThread(clean_name(process), clean_name(name), pid_of(key.pid), key.tid)


def _frame(location: Location, named: NamedFrame) -> ReportFrame:
    module = location.module
    return ReportFrame(
        named.text,
        named.function,
        None if named.raw is None else clean_name(named.raw),
        clean_name(module.path) if module else None,
        module.build_id if module else None,
        location.address,
        named.file,
        named.line,
        named.inlined,
        named.kind,
        location.found,
    )
