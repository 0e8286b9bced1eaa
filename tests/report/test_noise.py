"""Ordinary differences: the distribution, the verdicts, and how often they are wrong.

scripts/prove-comparison simulates services that fluctuate; here are a few of its comparisons.
"""

import random
import runpy
from collections import Counter
from math import exp, inf, log
from pathlib import Path

import pytest

from sfsample.report.difference import GREW, NOISE, SHRANK, UNKNOWN, Ordinary, Side, compare_sides
from sfsample.report.formats.difference import difference_html, difference_text, warnings
from sfsample.report.noise import half_width, log_ratio, p_value
from tests.builders.reports import from_lines

PROOF = runpy.run_path(str(Path(__file__).parents[2] / "scripts/prove-comparison"))


@pytest.mark.parametrize(("pairs", "critical"), [(8, 2.306), (10, 2.228), (27, 2.052)])
def test_interval_is_that_of_student(pairs, critical):
    """The values are those of the usual table, for two sides and 5 %."""
    assert half_width([-0.1] * pairs) == pytest.approx(0.1 * critical, rel=1e-3)
    assert p_value(0.1 * critical, [0.1] * pairs, 0.0) == pytest.approx(0.05, rel=2e-3)


def test_a_difference_that_was_seen_before_is_ordinary():
    assert p_value(5.0, [0.001] * 20 + [-5.0], 0.0) == 1.0
    assert p_value(5.1, [0.001] * 20 + [-5.0], 0.0) < 0.05
    assert p_value(0.1, [0.0] * 8, 0.0) == 0.0
    assert p_value(0.1, [0.0] * 8, 0.3) == 0.3
    assert p_value(0.0, [0.0] * 8, 0.0) == 1.0


def test_few_pairs_need_four_times_the_largest_and_ten_times_the_chance():
    assert p_value(0.41, [0.1, -0.05, 0.0], 1e-30) == 1e-30
    assert p_value(0.39, [0.1, -0.05, 0.0], 1e-30) == 1.0
    assert p_value(0.41, [0.1, -0.05, 0.0], 1e-20) == 1.0


def test_log_ratio_is_finite():
    assert log_ratio(100, 100, (1.0, 2.0)) == pytest.approx(-log(2))
    assert 0 < log_ratio(0, 1 << 62, (1.0, 1.0)) < 100
    assert log_ratio(0, 0, (0.0, 0.0)) == 0.0


# -- verdicts


def time(**samples: int) -> Side:
    """Return a time of 10,000 ticks."""
    counts = Counter(samples)
    return Side("", 1, counts.total(), 10_000.0, 10**9, 10.0, None, None, "wall", (), counts, counts)


def pairs(count: int, *values: int) -> Ordinary:
    """Return pairs in which `a` has 1,000 samples first, and then one of the values."""
    return Ordinary(tuple((time(a=1000), time(a=values[at % len(values)])) for at in range(count)), "days")


def verdict(after: int, ordinary: Ordinary | None) -> str:
    return compare_sides(time(a=1000), time(a=after), ordinary=ordinary).by_self[0].verdict


def test_what_ordinary_times_differ_by_is_noise():
    assert verdict(1300, None) == GREW
    assert verdict(1300, pairs(20, 1300, 800)) == NOISE
    assert verdict(1300, pairs(20, 1010, 990)) == GREW
    assert verdict(700, pairs(20, 1010, 990)) == SHRANK
    assert verdict(2000, pairs(20, 1300, 800)) == GREW


def test_few_pairs_allow_only_a_large_change():
    assert verdict(1150, pairs(20, 1030, 970)) == GREW
    assert verdict(1150, pairs(3, 1030, 970)) == NOISE
    assert verdict(2000, pairs(3, 1030, 970)) == GREW
    assert verdict(2, pairs(3, 1030, 970)) == SHRANK
    assert verdict(2, pairs(3, 1030, 3)) == NOISE


def test_chance_of_sampling_stays_noise_although_ordinary_times_were_equal():
    assert verdict(1030, pairs(20, 1000)) == NOISE


def test_interval_holds_what_is_ordinary():
    found = compare_sides(time(a=1000), time(a=2000), ordinary=pairs(10, 1300, 769)).by_self[0]
    assert found.ordinary == pytest.approx(1.3, rel=0.01)
    assert (found.low, found.high) == pytest.approx(
        (2 * exp(-2.228 * log(1.3)), 2 * exp(2.228 * log(1.3))), rel=0.01
    )
    assert compare_sides(time(), time(a=2000), ordinary=pairs(10, 1300)).by_self[0].high == inf


def test_without_ordinary_times_there_is_no_verdict():
    found = compare_sides(time(a=1000, b=1000), time(a=2000, b=1001), ordinary=pairs(2, 1000))
    assert [change.verdict for change in found.by_self] == [UNKNOWN, NOISE]
    [warning] = warnings(found)
    assert warning.startswith("no verdict: the history has 2 pairs of days, and 3 are needed")
    assert warning.endswith("; times that are shorter (--for) or closer together have more pairs")
    lines = [*difference_text(found)]
    assert [line.split()[0] for line in lines if line.endswith(" a")] == ["unknown", "unknown"]
    assert [line.split()[0] for line in lines if line.endswith(" b")] == ["noise", "noise"]


def test_text_says_what_was_ordinary_and_that_the_load_was():
    lines = [*difference_text(compare_sides(time(a=1000), time(a=2000), ordinary=pairs(20, 1300, 800)))]
    assert lines[3].startswith("ordinary: 20 pairs of days;")
    assert lines[4].endswith("--relative leaves the load out")
    steady = compare_sides(time(a=1000), time(a=2000), ordinary=pairs(20, 1001))
    assert not any("--relative" in line for line in difference_text(steady))


def test_text_says_how_much_ordinary_times_differ_for_each_function():
    lines = [*difference_text(compare_sides(time(a=1000), time(a=1500), ordinary=pairs(3, 1300)))]
    assert lines[3].endswith("if it differs by 4 times as much as in these pairs")
    assert lines[6].split()[-3:] == ["ratio", "ordinary", "function"]
    row = next(line.split() for line in lines if line.endswith(" a"))
    assert [row[0], *row[-3:]] == ["noise", "x0.53..4.28", "x1.30", "a"]


def test_page_marks_what_is_beyond_noise():
    report = from_lines("p;a 1000")
    found = compare_sides(time(a=1000), time(a=2000), ordinary=pairs(20, 1010))
    assert b"ordinary: 20 pairs of days" in difference_html(report, report, found)


# -- how often they are wrong


@pytest.mark.parametrize("service", PROOF["SERVICES"], ids=lambda service: service.name.split(":")[0])
def test_unchanged_times_have_hardly_a_verdict(service):
    """At most 5 % of comparisons; 40 of each have at most 6 with a chance of 99.9 %."""
    chance = random.Random(3)  # noqa: S311 - the same every time
    for times, *more in ((PROOF["hour_before"],), (PROOF["day_before"], 12)):
        wrong = sum(
            bool(PROOF["changed"]([*times(chance, service, *more)], 1.0, relative=False)) for _ in range(40)
        )
        assert wrong <= 6


def test_counts_alone_call_most_unchanged_hours_changed():
    """This is why slices of a history are not compared as files are."""
    chance, wrong = random.Random(4), 0  # noqa: S311 - the same every time
    for _ in range(20):
        after, before, *_ = map(PROOF["side"], PROOF["hour_before"](chance, PROOF["SERVICES"][2]))
        wrong += any(change.verdict != NOISE for change in compare_sides(before, after).by_self)
    assert wrong > 15


def test_a_twentieth_of_a_tenth_is_found_in_an_hour_of_eight_threads():
    chance = random.Random(5)  # noqa: S311 - the same every time
    steady = PROOF["SERVICES"][0]._replace(threads=8)
    found = [
        PROOF["changed"]([*PROOF["hour_before"](chance, steady)], 1.05, relative=False) for _ in range(20)
    ]
    assert sum(PROOF["CHANGED"] in names for names in found) >= 18
