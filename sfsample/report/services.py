"""Splits the report of several programs into one report for each service."""

from collections import Counter

from sfsample.modules.location import pid_of
from sfsample.process.labels import MANAGER, Identity
from sfsample.recording.profile import Profile
from sfsample.report.naming import labels_of, target_of
from sfsample.report.report import CPU, Report, ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import clean_name

_OF_ALL = ("mode", "recorder", "ticks", "late_ticks", "spared_ticks", "problems")  # all services share these
_NAME = "service.name"


def by_service(report: Report, profile: Profile) -> list[tuple[str, Report]]:
    """Return the name and the report of each service that has samples."""
    keys = [_key(thread, profile) for thread in report.threads]
    builders = {key: ReportBuilder(report.weights) for key in keys}
    for stack in report.stacks:
        frames = [report.frames[at] for at in stack.frames]
        builder = builders[keys[stack.thread]]
        builder.add(report.threads[stack.thread], frames, stack.stop_reason, stack.weights)
    parts = ((name, _part(report, builder.finish(), profile)) for (name, _), builder in builders.items())
    return [(name, with_service(part, name, profile)) for name, part in parts]


def with_service(report: Report, service: str, profile: Profile) -> Report:
    """If the report has a label service.name, set it to the value of --label, or else to `service`."""
    labels, name = report.labels or {}, clean_name(profile.labels.get(_NAME) or service)
    return report._replace(labels=labels | {_NAME: name}) if _NAME in labels else report


def _key(thread: ReportThread, profile: Profile) -> tuple[str, str]:
    """Return the service and the container of a thread, because two containers may run the same program.

    The service is the value of --label service.name.  Without --label it is OWNER/NAME, or only OWNER if both
    are the same.  A process can choose its NAME (by its labels or its program), but not its OWNER.
    """
    identity = profile.identities.get(thread.pid or 0, Identity({}))
    unit, owner = identity.unit or "", identity.owner or "unknown"
    is_service = unit.endswith(".service") and not MANAGER.fullmatch(unit) and not identity.container
    name = identity.labels.get(_NAME) or (unit if is_service else thread.process)
    service = owner if name == owner else f"{owner}/{name.replace('/', '_')}"
    return clean_name(profile.labels.get(_NAME) or service), identity.container or ""


def _part(report: Report, part: Report, profile: Profile) -> Report:
    """Return the report of a service: its stacks, statistics, labels and target."""
    pids = {thread.pid for thread in part.threads}
    processes = [identity for pid, identity in profile.identities.items() if pid in pids]
    reasons = Counter[str]()
    for stack in part.stacks:
        reasons[stack.stop_reason] += stack.weights[0]
    charged_ns = sum(ns for key, ns in profile.charged_ns.items() if pid_of(key) in pids)
    most_waiters = report.stats.document.get("most_waiters", {})
    stats = report.stats.only(_OF_ALL).having(
        samples=part.total(), stacks=dict(reasons), cpu_charged_ns=charged_ns,
        cpu_sampled_ns=part.total(CPU), cpu_ms_by_second=profile.cpu_ms_by_second(pids),
        most_waiters={pid: most for pid, most in most_waiters.items() if int(pid) in pids},
    )  # fmt: skip
    return report._replace(
        threads=part.threads, frames=part.frames, stacks=part.stacks, timeline=None, stats=stats,
        labels=labels_of(processes, profile.labels), target=target_of(processes),
    )  # fmt: skip
