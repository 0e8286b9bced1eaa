"""Times of day on the command line."""

import time
from math import inf

import pytest

from sfsample.cli import values
from sfsample.cli.parse import parse
from sfsample.core.quantities import BadValue
from sfsample.errors import UsageError

NOW_S = 1_795_515_608.0  # 2026-11-24 10:20:08 UTC


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Stop the clock, in a zone five and a half hours ahead of UTC."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    monkeypatch.setattr(values.time, "time", lambda: NOW_S)
    yield
    monkeypatch.undo()
    time.tzset()


def utc(text: str) -> float:
    return NOW_S - 37_208 + sum(int(part) * unit for part, unit in zip(text.split(":"), (3600, 60, 1)))  # noqa: B905


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", inf),
        ("-2h", NOW_S - 7200),
        ("-90", NOW_S - 90),
        ("14:00", utc("8:30")),
        ("14:00:30", utc("8:30:30")),
        ("today 9:05", utc("3:35")),
        ("yesterday 14:00", utc("8:30") - 86400),
        ("yesterday", utc("0:00") - 86400 - 5.5 * 3600),
        ("2026-11-24", utc("0:00") - 5.5 * 3600),
        ("2026-11-24T14:00", utc("8:30")),
        ("2026-11-24 14:00+01:00", utc("13:00")),
        ("2026-11-24T14:00Z", utc("14:00")),
    ],
)
def test_times(text, expected):
    assert values.when(text) == expected


@pytest.mark.parametrize(
    "text", ["", "x", "25:00", "14:60", "tomorrow", "-", "-x", "99999-01-01", "--2h", "now "]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(BadValue, match="not a"):
        values.when(text)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("2026-03-29T02:30", "2026-03-29T01:30Z"),  # no local clock shows it
        ("2026-10-25T02:30", "2026-10-25T00:30Z"),  # local clocks show it twice
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30Z"),
        ("2026-10-25T03:30", "2026-10-25T02:30Z"),
        ("yesterday 02:30", "2026-10-25T00:30Z"),
        ("yesterday 23:59:59", "2026-10-25T22:59:59Z"),
        ("2:30", "2026-10-26T01:30Z"),
    ],
)
def test_local_times_on_the_day_when_clocks_are_set(monkeypatch, text, taken):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    monkeypatch.setattr(values.time, "time", lambda: 1_793_000_000.0)  # 2026-10-26
    assert values.when(text) == values.when(taken)


def test_service_that_is_no_utf8_is_named_as_it_is_kept():
    assert parse(["history", "list", "--service", "sl\udcffp"]).service == "sl\ufffdp"


def test_since_takes_a_length_or_a_time():
    assert values.since("2h") == NOW_S - 7200
    assert values.since("14:00") == utc("8:30")


def test_build_id_is_no_time():
    assert values.when_or_build("ab12cd34") == "ab12cd34"
    assert values.when_or_build("now") == inf
    with pytest.raises(BadValue, match="or a build-id"):
        values.when_or_build("xyz")


def test_labels_are_those_of_record():
    assert parse(["history", "list", "--label", "a=b=c"]).labels == (("a", "b=c"),)
    for text in ("", "a", "=b"):
        with pytest.raises(UsageError, match="--label: "):
            parse(["history", "list", "--label", text])


def test_time_that_begins_with_a_dash_is_no_flag():
    arguments = parse(["history", "diff", "--at", "-2h", "--for", "1h", "--with", "-30m"])
    assert (arguments.at, arguments.other) == (NOW_S - 7200, NOW_S - 1800)
