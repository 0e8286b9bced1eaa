"""The limit of overhead holds over any two seconds, is spent evenly, and forgets a burst."""

from itertools import accumulate, pairwise
from random import Random

import pytest

from sfsample.recording.ticks import SLOWNESS, OverheadLimit, Schedule

TICK = 0.01


def ticks_taken(share: float | None, costs: list[float]) -> list[tuple[float, float]]:
    """Return time and cost of each tick that is taken, of one each 10 ms; a cost per taken tick."""
    limit, spent, resume, taken = OverheadLimit(share, 0.0, 1.0), 1.0, 0.0, []
    for number in range(len(costs)):
        now = number * TICK
        if now < resume - 1e-9:
            continue
        taken.append((now, costs[len(taken)]))
        spent += taken[-1][1]
        resume = limit.resume_at(now, spent)
    return taken


def test_no_limit_leaves_out_nothing():
    assert len(ticks_taken(None, [1.0] * 100)) == 100
    assert len(ticks_taken(0.2, [0.001] * 100)) == 100


def test_share_is_kept_over_any_two_seconds_and_spent_evenly():
    taken = ticks_taken(0.05, [0.0005 + number * 7 % 11 * 0.0001 for number in range(2000)])
    times, total = [at for at, _ in taken], [0.0, *accumulate(cost for _, cost in taken)]
    for first, begin in enumerate(times):
        last = next((at for at in range(first, len(times)) if times[at] > begin + 2), len(times))
        assert total[last] - total[first] <= 0.05 * (2 + 0.25) + 0.0015
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= 0.05
    assert total[-1] == pytest.approx(0.05 * 20, rel=0.05)


def test_burst_is_paid_back_for_two_seconds_at_most():
    taken = ticks_taken(0.01, [0.3, *[0.0001] * 999])
    assert taken[1][0] == pytest.approx(2.0, abs=2 * TICK)


def test_time_that_fell_is_no_credit():
    """What is spent contains the longest hold of a living thread, which ends."""
    limit = OverheadLimit(0.1, 0.0, 5.0)
    assert limit.resume_at(1.0, 4.0) == 1.0
    assert limit.resume_at(1.0, 4.1) == pytest.approx(1.0 + 0.1 / 0.1 - 0.25)


def lengths(share: float | None, costs: list[float]) -> list[float]:
    """Return the length in s of the interval after each tick, at 100 Hz."""
    limit, now, spent, found = OverheadLimit(share, 0.0, 1.0, SLOWNESS), 0.0, 1.0, []
    for cost in costs:
        spent += cost
        found.append(TICK + limit.resume_at(now, spent) - now)
        now += found[-1]
    return found


def test_intervals_have_the_length_of_the_rate_if_ticks_are_cheap():
    assert lengths(None, [1.0] * 10) == pytest.approx([TICK] * 10)
    *first, last = lengths(0.2, [0.001] * 20)
    assert last == pytest.approx(TICK)
    assert max(first) < 1.1 * TICK


def test_intervals_follow_the_cost_slowly_and_the_share_holds():
    costs = [0.0005 + number * 7 % 11 * 0.0003 for number in range(2000)]
    found = lengths(0.05, costs)
    assert sum(costs) == pytest.approx(0.05 * sum(found), rel=0.01)
    assert max(found[100:]) < 1.4 * min(found[100:])
    assert all(0.8 < later / earlier < 1.25 for earlier, later in pairwise(found[100:]))


def test_interval_after_a_burst_is_longer_by_a_quarter_of_a_second():
    first, *later = lengths(0.01, [3.0, *[0.0] * 99])
    assert first == pytest.approx(TICK + 2.0 / 8)
    assert sum(later) < 99 * TICK + 2.0
    assert later[-1] == pytest.approx(TICK)


def test_ticks_that_all_cost_more_than_two_seconds_of_the_share_count_in_full():
    found = lengths(0.01, [0.1] * 100)
    assert found[0] == pytest.approx(TICK + 2 / 8)
    assert found[1] == pytest.approx(TICK + (2 - found[0] + 10) / 8, abs=0.02)
    assert found[-1] == pytest.approx(10, rel=0.01)


@pytest.mark.parametrize("period", [0.05, 0.25, 1.0])
def test_lowered_rate_keeps_no_step_with_periodic_work(period):
    """The work takes a fifth of each period, and a tick then costs more; most intervals take 0.25 s."""
    random = Random(1)  # noqa: S311 - the same every time
    schedule, limit = Schedule(0.0, 19.0, 600.0, random.random), OverheadLimit(0.03, 0.0, 0.0, SLOWNESS)
    spent, times = 0.0, []
    while not schedule.over:
        now = schedule.next()
        times.append(now)
        schedule.take(now)
        spent += 0.0075 * random.gauss(1, 0.05) * (1.5 if now % period < period / 5 else 0.875)
        schedule.stretch = 1 + (limit.resume_at(now, spent) - now) * 19.0
    seen = sum(at % period < period / 5 for at in times) / len(times)
    assert seen == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / len(times)) ** 0.5)
    gaps = sorted(later - earlier for earlier, later in pairwise(times))
    tenth, median, most = (gaps[len(gaps) * part // 10] for part in (1, 5, 9))
    assert 0.65 * median < tenth < most < 1.35 * median
