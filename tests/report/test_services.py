"""The report of several programs is split into one for each service: each sample is in one of them."""

from collections import Counter

import pytest

from sfsample.process.labels import Identity
from sfsample.recording.profile import Profile
from sfsample.report.report import OUTERMOST, WEIGHTS, ReportBuilder, ReportThread
from sfsample.report.services import by_service
from sfsample.report.stats import ReportStats
from sfsample.symbolize.named_frame import NamedFrame

MAIN = NamedFrame("main")


def split(*processes, charged=(), labels=()):
    """Split the report of processes with one sample each, of ids 1, 2 ...: (name, identity)."""
    profile, builder = Profile(19.0), ReportBuilder(WEIGHTS)
    profile.labels = dict(labels)
    for pid, (name, identity) in enumerate(processes, 1):
        profile.identify(pid, identity)
        builder.add(ReportThread(name, name, pid, pid), [MAIN], OUTERMOST, (1, 50, 10 * pid))
    profile.charged_ns = Counter(dict(enumerate(charged, 1)))
    stats = {"ticks": 1140, "samples": len(processes), "captures": {"stopped": 2}, "mode": "wall",
             "most_waiters": {str(pid): {"[GIL]": pid} for pid in range(1, len(processes) + 1)}}  # fmt: skip
    return by_service(builder.finish()._replace(stats=ReportStats(stats)), profile)


@pytest.mark.parametrize(
    ("identity", "service"),
    [
        (
            Identity({"service.name": "shop\x1b"}, unit="web.service", owner="web.service"),
            "web.service/shop?",
        ),
        (Identity({}, unit="nginx.service", owner="nginx.service"), "nginx.service"),
        (
            Identity({}, unit="user@1000.service", owner="user-1000"),
            "user-1000/python3",
        ),  # what the user runs
        (Identity({}, unit="nginx.service", owner="user-1000"), "user-1000/nginx.service"),  # the user's own
        (Identity({}, unit="session-2.scope", owner="user-1000"), "user-1000/python3"),
        (Identity({}, unit="docker.service", container="ab" * 32, owner="container"), "container/python3"),
        (Identity({"service.name": "user-0/cron"}, owner="user-1000"), "user-1000/user-0_cron"),
        (Identity({"service.name": "nginx.service"}, owner="user-1000"), "user-1000/nginx.service"),
        (Identity({}), "unknown/python3"),
    ],
)
def test_a_service_is_a_name_within_its_owner(identity, service):
    """The name is what the process says, its unit, or its program."""
    assert [name for name, _ in split(("python3", identity))] == [service]


def test_one_claim_of_two_owners_is_two_services():
    claims = [Identity({"service.name": "redis"}, owner=owner) for owner in ("redis.service", "user-1000")]
    parts = split(*(("redis-server", claim) for claim in claims))
    names = ["redis.service/redis", "user-1000/redis"]
    assert [name for name, _ in parts] == names
    assert [report.total() for _, report in parts] == [1, 1]
    assert [report.labels for _, report in parts] == [{"service.name": name} for name in names]


def test_label_of_the_user_names_the_service_whatever_a_process_claims():
    claims = [Identity({"service.name": "redis"}, owner=owner) for owner in ("redis.service", "user-1000")]
    [(name, report)] = split(*(("r", claim) for claim in claims), labels={"service.name": "team/cache"})
    assert (name, report.labels, report.total()) == ("team/cache", {"service.name": "team/cache"}, 2)


def test_processes_of_one_service_are_together_and_others_are_not():
    worker = Identity({"service.name": "web", "comm": "gunicorn"}, build_id="beef", owner="container")
    helper = Identity({"service.name": "web", "comm": "node"}, owner="container")
    parts = split(
        ("gunicorn", worker),
        ("redis", Identity({}, owner="container")),
        ("node", helper),
        charged=(11, 22, 40),
    )
    (web, redis) = parts
    assert (web[0], redis[0]) == ("container/web", "container/redis")
    assert web[1].labels == {"service.name": "container/web"}  # that all of its processes have
    assert (web[1].total(), web[1].total("cpu_ns"), redis[1].total("cpu_ns")) == (2, 40, 20)
    assert web[1].stats.document == {
        "ticks": 1140, "mode": "wall", "samples": 2, "stacks": {"outermost": 2}, "cpu_charged_ns": 51,
        "cpu_sampled_ns": 40, "cpu_ms_by_second": [],
        "most_waiters": {"1": {"[GIL]": 1}, "3": {"[GIL]": 3}},
    }  # fmt: skip


def test_one_program_in_two_containers_is_two_services_of_one_name():
    inside = [Identity({"container.id": letter}, container=letter, owner="container") for letter in "ab"]
    parts = split(*(("postgres", identity) for identity in inside))
    assert [(name, report.labels) for name, report in parts] == [
        ("container/postgres", {"container.id": letter}) for letter in "ab"]  # fmt: skip
