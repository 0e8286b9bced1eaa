"""The limit of overhead holds over any two seconds, is spent evenly, and forgets a burst."""

from itertools import accumulate, pairwise

import pytest

from sfsample.recording.ticks import OverheadLimit

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


def test_ticks_that_all_cost_more_than_two_seconds_of_the_share_are_paid_back_in_full():
    times = [at for at, _ in ticks_taken(0.01, [0.1] * 3000)]
    assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([2, 2, 10, 10], abs=TICK)


def test_time_that_fell_is_no_credit():
    """What is spent contains the longest hold of a living thread, which ends."""
    limit = OverheadLimit(0.1, 0.0, 5.0)
    assert limit.resume_at(1.0, 4.0) == 1.0
    assert limit.resume_at(1.0, 4.1) == pytest.approx(1.0 + 0.1 / 0.1 - 0.25)
