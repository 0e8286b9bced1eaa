"""From a profile to a report: every place gets its names.

Law: the only step between `Profile` and `Report`; the symbolizer decides what a place is called, here it is
put into tables.  A place that stands for inlined functions becomes one frame for each.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from sfsample.modules.location import Location, pid_of
from sfsample.recording.profile import Profile, StackKey, Timeline
from sfsample.report.builder import ReportBuilder
from sfsample.report.report import WEIGHTS, Report, ReportFrame, ReportTimeline, Thread
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.missing import MissingName
from sfsample.symbolize.named_frame import NamedFrame


class Namer(Protocol):
    """Knows the functions at a place, the most inlined first."""

    def frames(self, location: Location, /) -> tuple[NamedFrame, ...]:
        """Return at least one."""
        ...

    def unnamed(self) -> Sequence[MissingName]:
        """Return which of the places asked for have no name."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read."""
        ...


def name_profile(profile: Profile, namer: Namer) -> Report:
    """Return the report of a profile."""
    measured = (
        WEIGHTS if any(profile.cpu_ns.values()) else WEIGHTS[:-1]
    )  # CPU time that nobody measured is no 0
    builder = ReportBuilder(measured)
    places: dict[Location, tuple[ReportFrame, ...]] = {}
    indexes: dict[StackKey, int] = {}
    for key, count in profile.counts.items():
        frames: list[ReportFrame] = []
        for place in key.locations:
            if place not in places:
                places[place] = tuple(_frame(place, named) for named in namer.frames(place))
            frames.extend(places[place])
        weights = (count, profile.wall_ns[key], profile.cpu_ns[key])
        indexes[key] = builder.add(
            _thread(profile, key), frames, str(key.stop_reason), weights[: len(measured)]
        )
    return builder.finish(
        started_ns=profile.started_ns or None,
        rate_hz=profile.stats.rate_hz,
        duration_ns=round(profile.stats.duration_s * 1e9),
        timeline=None if profile.timeline is None else _timeline(profile.timeline, indexes),
        stats=_stats(profile, namer),
    )


def _stats(profile: Profile, namer: Namer) -> dict[str, Any]:
    """Return what the recording lost, and what was lost by naming."""
    stats = profile.stats.as_json()
    stats["problems"] += namer.problems
    return {**stats, "unnamed": [one._asdict() for one in namer.unnamed()]}


def _timeline(timeline: Timeline, indexes: dict[StackKey, int]) -> ReportTimeline:
    stacks = [indexes[key] for key in timeline.keys]
    return ReportTimeline(timeline.at_ns, [stacks[at] for at in timeline.stack], timeline.times,
                          timeline.wall_ns, timeline.cpu_ns, timeline.dropped)  # fmt: skip


def _thread(profile: Profile, key: StackKey) -> Thread:
    process, name = profile.processes[key.pid], profile.threads[key.thread]
    return Thread(clean_name(process), clean_name(name), pid_of(key.pid), key.tid)


def _frame(place: Location, named: NamedFrame) -> ReportFrame:
    module = place.module
    return ReportFrame(
        named.text,
        named.function,
        None if named.raw is None else clean_name(named.raw),
        clean_name(module.path) if module else None,
        module.build_id if module else None,
        place.address,
        named.file,
        named.line,
        named.inlined,
        named.kind,
        place.found,
    )
