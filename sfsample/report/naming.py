"""Puts names into reports: makes the report of a profile, and names the unnamed frames of a report."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any

from sfsample.modules.location import Location, pid_of
from sfsample.process.labels import Identity
from sfsample.recording.profile import Profile
from sfsample.recording.sample import StackKey
from sfsample.report.merge import common_values, rebuild
from sfsample.report.report import TARGET_FIELDS, WEIGHTS, Report, ReportBuilder, ReportThread, ReportTimeline
from sfsample.report.stats import ReportStats
from sfsample.report.waits import lock_wait
from sfsample.symbolize.named_frame import NamedFrame, clean_name
from sfsample.symbolize.symbolizer import OfflineSymbolizer, Symbolizer

_LINE = re.compile(r":(\d+|None)\)(?=(_\[p\])?$)")  # the line in the text of a Python frame
_EXACT = ("context", "signal_frame")  # values of `found`; the pc of these frames is no return address


def name_profile(profile: Profile, symbolizer: Symbolizer) -> Report:
    """Return the report of a profile."""
    has_cpu_time = any(total.cpu_ns for total in profile.totals.values())  # False: CPU time is unknown
    weights = WEIGHTS if has_cpu_time else WEIGHTS[:-1]
    builder = ReportBuilder(weights)
    indexes: dict[StackKey, int] = {}

    @cache
    def named(location: Location) -> list[NamedFrame]:
        return [frame._replace(symbol_offset=None) for frame in symbolizer.frames(location)]

    for key, total in profile.totals.items():
        frames = [frame for location in key.locations for frame in named(location)]
        numbers = (total.times, total.wall_ns, total.cpu_ns)[: len(weights)]
        process, task = profile.processes[key.process_key], profile.threads[key.thread]
        thread = ReportThread(clean_name(process), clean_name(task), pid_of(key.process_key), key.tid)
        indexes[key] = builder.add(thread, frames, str(key.stop_reason), numbers)
    timeline = profile.timeline
    stacks = [indexes[key] for key in timeline.keys] if timeline else []
    stats = profile.stats.as_json()
    problems = dict.fromkeys([*stats["problems"], *symbolizer.problems])  # both lists have damaged files
    stats["problems"] = [*problems]
    most = stats["most_waiters"] = defaultdict[str, Counter[str]](Counter)  # key: pid, then lock
    for key, number in profile.waiters.most.items():
        wait = lock_wait([frame for location in key.locations for frame in named(location)])
        if wait and wait.in_table:
            most[str(pid_of(key.process_key))] |= Counter({wait.name: number})
    return builder.finish()._replace(
        started_ns=profile.started_ns or None,
        rate_hz=profile.stats.rate_hz,
        duration_ns=round(profile.stats.duration_s * 1e9),
        timeline=None if timeline is None else ReportTimeline(
            timeline.at_ns, [stacks[at] for at in timeline.stack], timeline.times,
            timeline.wall_ns, timeline.cpu_ns, timeline.dropped),
        host=clean_name(profile.host) or None,
        labels=labels_of(profile.identities.values(), profile.labels),
        target=target_of(profile.identities.values()),
        stats=ReportStats(stats | {"unnamed": [each._asdict() for each in symbolizer.missing_names()]}),
    )  # fmt: skip


def labels_of(processes: Iterable[Identity], of_user: dict[str, str]) -> dict[str, str] | None:
    """Return the labels that all processes have in common, and the labels of --label."""
    common = common_values([process.labels for process in processes]) or {}
    return {key: clean_name(value) for key, value in (common | of_user).items()} or None


def target_of(processes: Iterable[Identity]) -> dict[str, Any] | None:
    """Return the `TARGET_FIELDS` that are the same for all processes."""
    facts = [{name: getattr(process, name) for name in TARGET_FIELDS} for process in processes]
    return {name: clean_name(value) if isinstance(value, str) else value
            for name, value in (common_values(facts) or {}).items() if value is not None} or None  # fmt: skip


def name_unnamed_frames(report: Report, symbolizer: OfflineSymbolizer) -> Report:
    """Return the report with a name for each unnamed frame that the symbolizer can name."""
    table = {frame: _name_by_build_id(frame, symbolizer) for frame in report.frames}
    return rebuild(report, lambda frames: [new for frame in frames for new in table[frame]])


def _name_by_build_id(frame: NamedFrame, symbolizer: OfflineSymbolizer) -> list[NamedFrame]:
    if frame.function is not None or not frame.module or not frame.build_id or frame.address is None:
        return [frame]
    found = symbolizer.frames(frame.module, frame.build_id, frame.address, exact=frame.found in _EXACT)
    named = [each for each in found if each.function is not None]
    return [each._replace(found=frame.found, symbol_offset=None) for each in named] or [frame]


def with_python_lines(report: Report) -> Report:
    """Return the report with the executed line in the text of each Python frame."""
    frames = [frame._replace(text=_LINE.sub(f":{frame.line})", frame.text))
              if frame.kind == "p" and frame.line else frame for frame in report.frames]  # fmt: skip
    return report._replace(frames=tuple(frames))


def with_python_marks(report: Report) -> Report:
    """Return the report with `_[p]` at the end of each Python function."""
    marked = [frame._replace(text=f"{frame.text.removesuffix('_[p]')}_[p]") if frame.kind == "p" else frame
              for frame in report.frames]  # fmt: skip
    return report._replace(frames=tuple(marked))
