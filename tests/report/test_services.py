"""The report of several programs is split into one for each service: each sample is in one of them."""

from collections import Counter

import pytest

from sfsample.process.labels import Identity
from sfsample.recording.profile import Profile
from sfsample.report.report import OUTERMOST, WEIGHTS, ReportBuilder, ReportFrame, ReportThread
from sfsample.report.services import by_service
from sfsample.report.stats import ReportStats

MAIN = ReportFrame("main")


def split(*processes, charged=()):
    """Split the report of processes with one sample each, of ids 1, 2 ...: (name, identity)."""
    profile, builder = Profile(19.0), ReportBuilder(WEIGHTS)
    for pid, (name, identity) in enumerate(processes, 1):
        profile.identify(pid, identity)
        builder.add(ReportThread(name, name, pid, pid), [MAIN], OUTERMOST, (1, 50, 10 * pid))
    profile.charged_ns = Counter(dict(enumerate(charged, 1)))
    stats = {"ticks": 1140, "samples": len(processes), "captures": {"stopped": 2}, "mode": "wall"}
    return by_service(builder.finish()._replace(stats=ReportStats(stats)), profile)


@pytest.mark.parametrize(
    ("identity", "service"),
    [
        (Identity({"service.name": "shop\x1b"}, unit="web.service"), "shop?"),
        (Identity({}, unit="nginx.service"), "nginx.service"),
        (Identity({}, unit="user@1000.service"), "python3"),  # whatever the user runs
        (Identity({}, unit="session-2.scope"), "python3"),
        (Identity({}, unit="docker.service", container="ab" * 32), "python3"),
        (Identity({}), "python3"),
    ],
)
def test_a_service_is_what_it_says_or_a_unit_or_a_program(identity, service):
    assert [name for name, _ in split(("python3", identity))] == [service]


def test_processes_of_one_service_are_together_and_others_are_not():
    worker = Identity({"service.name": "web", "comm": "gunicorn"}, build_id="beef")
    helper = Identity({"service.name": "web", "comm": "node"})
    parts = split(("gunicorn", worker), ("redis", Identity({})), ("node", helper), charged=(11, 22, 40))
    (web, redis) = parts
    assert (web[0], redis[0]) == ("web", "redis")
    assert web[1].labels == {"service.name": "web"}  # that all of its processes have
    assert (web[1].total(), web[1].total("cpu_ns"), redis[1].total("cpu_ns")) == (2, 40, 20)
    assert web[1].stats.document == {
        "ticks": 1140, "mode": "wall", "samples": 2, "stacks": {"outermost": 2}, "cpu_charged_ns": 51,
        "cpu_sampled_ns": 40, "cpu_ms_by_second": [],
    }  # fmt: skip


def test_one_program_in_two_containers_is_two_services_of_one_name():
    inside = [Identity({"container.id": letter}, container=letter) for letter in "ab"]
    parts = split(*(("postgres", identity) for identity in inside))
    assert [(name, report.labels) for name, report in parts] == [
        ("postgres", {"container.id": "a"}), ("postgres", {"container.id": "b"})]  # fmt: skip
