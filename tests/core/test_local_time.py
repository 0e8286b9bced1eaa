"""Times by local clocks: what is printed can be read back, also in the hour that clocks show twice."""

import os
import random
import time
from collections.abc import Callable, Iterator

import pytest

from sfsample.core.local_time import local, local_span, read_local, use_utc, zone, zone_id

AUTUMN_S = 1_793_512_800  # 2026-11-01 06:00 UTC: summer time ends in New York
Travel = Callable[[str], None]


@pytest.fixture
def travel() -> Iterator[Travel]:
    """Return a function that chooses the local zone, until the end of the test."""
    before = os.environ.get("TZ")

    def to(name: str) -> None:
        os.environ["TZ"] = name
        time.tzset()

    yield to
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


@pytest.mark.parametrize("name", ["UTC", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
def test_printed_time_is_read_back(travel, name):
    travel(name)
    chance = random.Random(1)  # noqa: S311 - the same every time
    times = [chance.randrange(4 * 10**9) for _ in range(1000)]
    for at_s in (*times, *range(AUTUMN_S - 7200, AUTUMN_S + 7200, 600)):
        assert read_local(local(at_s)) == at_s


def test_time_that_clocks_show_twice_has_its_offset_the_second_time(travel):
    travel("America/New_York")
    assert local(AUTUMN_S - 1800) == "2026-11-01 01:30:00"
    assert local(AUTUMN_S + 1800) == "2026-11-01 01:30:00-05:00"
    assert local(AUTUMN_S + 3600) == "2026-11-01 02:00:00"
    assert zone(AUTUMN_S - 1800, AUTUMN_S + 1800) == "EDT, EST"
    assert local_span(AUTUMN_S - 7200, AUTUMN_S + 3600) == "2026-11-01 00:00:00 to 02:00:00 EDT, EST"


def test_zone_without_letters_is_named_by_its_offset(travel):
    travel("America/Sao_Paulo")
    assert zone(AUTUMN_S) == "UTC-03:00"
    assert zone_id() == "America/Sao_Paulo" or "/" not in zone_id()


def test_utc_is_the_local_time_if_asked_for(travel):
    travel("Asia/Kolkata")
    assert (local(AUTUMN_S), zone(AUTUMN_S)) == ("2026-11-01 11:30:00", "IST")
    use_utc()
    assert (local(AUTUMN_S), zone(AUTUMN_S)) == ("2026-11-01 06:00:00", "UTC")


def test_time_without_a_calendar_is_printed_in_seconds():
    assert local(1e18) == "1e+18 s"
    assert zone(1e18) == "UTC"
