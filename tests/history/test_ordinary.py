"""Which ordinary times a comparison is judged by: as long, as far apart, and never across the change."""

import pytest

from sfsample.history.facts import SliceFacts, facts_of
from sfsample.history.ordinary import Pair, ordinary_pairs
from tests.builders.histories import MIDNIGHT_S, minute

HOUR = 60
_FACTS = facts_of(minute(0))


def slices(begin: int, end: int, every: int = 1) -> list[SliceFacts]:
    """Return slices of the minutes from `begin` to `end`, each of so many minutes."""
    times = [MIDNIGHT_S + 60.0 * at for at in range(begin, end, every)]
    return [_FACTS._replace(begin_s=at, end_s=at + 60.0 * every) for at in times]


def minutes(found: tuple[list[Pair], str]) -> list[tuple[float, float]]:
    """Return when the times of the pairs begin, in minutes."""
    for one, two in found[0]:
        assert one.end_s - one.begin_s == two.end_s - two.begin_s
    return [((one.begin_s - MIDNIGHT_S) / 60, (two.begin_s - MIDNIGHT_S) / 60) for one, two in found[0]]


def test_times_before_the_first_and_after_the_second():
    one, two = slices(600, 660), slices(720, 780)
    found = ordinary_pairs(slices(360, 1080), one, two)
    assert found[1] == "other times as long and as far apart"
    assert sorted(minutes(found)) == [
        (360, 480), (420, 540), (480, 600), (720, 840), (780, 900), (840, 960), (900, 1020),
    ]  # fmt: skip
    assert minutes(found)[:2] == [(480, 600), (720, 840)]
    assert minutes(ordinary_pairs(slices(360, 1080), two, one)) == minutes(found)


def test_no_pair_has_the_change_between_its_times():
    one, two = slices(600, 630), slices(1000, 1030)
    for first, second in minutes(ordinary_pairs(slices(0, 2000), one, two)):
        assert second <= 600 or first >= 1000


def test_times_far_apart_are_judged_by_days_alone():
    one, two = slices(600, 660), slices(600 + 24 * HOUR, 660 + 24 * HOUR)
    found = ordinary_pairs(slices(-4 * 24 * HOUR, 3000), one, two)
    assert found[1] == "the same hours of other days"
    assert minutes(found) == [(600 - day * 24 * HOUR, 600 - (day - 1) * 24 * HOUR) for day in range(1, 5)]
    assert minutes(ordinary_pairs(slices(0, 3000), one, two)) == []


def test_near_times_are_judged_by_days_once_there_are_enough():
    one, two = slices(600, 660, 10), slices(720, 780, 10)
    few = ordinary_pairs(slices(-9 * 24 * HOUR, 800, 10), one, two)
    many = ordinary_pairs(slices(-12 * 24 * HOUR, 800, 10), one, two)
    assert (few[1], len(few[0])) == ("other times as long and as far apart", 28)
    assert (many[1], len(many[0])) == ("the same hours of other days", 12)
    assert minutes(many)[0] == (600 - 24 * HOUR, 720 - 24 * HOUR)


def test_weeks_are_compared_with_weeks():
    week = 7 * 24 * HOUR
    one, two = slices(0, week, 60), slices(week, 2 * week, 60)
    found = minutes(ordinary_pairs(slices(-4 * week, 2 * week, 60), one, two))
    assert found == [(-week, 0), (-2 * week, -week), (-3 * week, -2 * week), (-4 * week, -3 * week)]


def test_times_that_slices_do_not_cover_are_left_out():
    one, two = slices(600, 660), slices(660, 720)
    history = [*slices(420, 450), *slices(480, 720)]
    assert minutes(ordinary_pairs(history, one, two)) == [(540, 600), (480, 540)]


def test_merged_slices_that_are_longer_than_the_times_are_none():
    one, two = slices(600, 630), slices(630, 660)
    merged = [*slices(0, 600, 60), *slices(600, 660)]
    assert minutes(ordinary_pairs(merged, one, two)) == []
    assert len(minutes(ordinary_pairs(merged, slices(600, 660), slices(660, 720)))) > 5


def test_slices_of_another_mode_are_none():
    one, two = slices(600, 630), slices(630, 660)
    other = [facts._replace(mode="cpu") for facts in slices(0, 600)]
    assert minutes(ordinary_pairs([*other, *one, *two], one, two)) == []


@pytest.mark.parametrize("length", [0.0, 1e-9])
def test_slices_without_a_length_give_no_pairs(length):
    facts = [_FACTS._replace(end_s=_FACTS.begin_s + length)]
    assert ordinary_pairs(facts, facts, facts)[0] == []


def test_few_slices_of_a_long_time_are_as_short_as_they_are():
    one, two = slices(600, 660, 20), slices(660, 720)
    one = [facts._replace(end_s=facts.begin_s + 60) for facts in one]  # three minutes out of an hour
    found = ordinary_pairs(slices(300, 720), one, two)
    assert found[0][0][0].end_s - found[0][0][0].begin_s == 180
